"""The network, as PyTorch modules and as exported graphs, against transformers with the same weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.build.artefacts import ensure_artefacts
from asr.build.recipe import Precision, Recipe
from asr.features import SAMPLE_RATE, WINDOW_FRAMES, WINDOW_SAMPLES, LogMel
from asr.kv_cache import BLOCK, KvCache
from asr.model import MASKED
from asr.session import Session
from asr.sessions.onnxruntime import OnnxSession
from asr.sessions.pytorch import torch_sessions
from asr.window import FRAMES_PER_POSITION, WINDOW_POSITIONS
from tests.asr.reference import LoadedModel, transformers_model

TOLERANCE = 1e-3
CPU = torch.device("cpu")
THREADS = 1

INT8_ROW_TOLERANCE = 0.06
"""Relative to the size of the outputs (root mean square). Activations are quantised token by token, so rows are
independent in the int8 graphs too, and on the processor that this was written on the difference is exactly 0. Elsewhere
a sum may come in another order; a last bit then moves some activation by a whole level of 1/127, and so on through the
layers: a change of the input by 1e-7 moves outputs by up to 0.047. Noise leaking in from padding does far more."""


@dataclass(frozen=True)
class Sessions:
    encoder: Session
    decoder: Session


@pytest.fixture(scope="module", params=["base", "tiny_en"])
def model(request: pytest.FixtureRequest) -> LoadedModel:
    loaded: LoadedModel = request.getfixturevalue(request.param)
    return loaded


@pytest.fixture(scope="module")
def torch_pair(model: LoadedModel) -> Sessions:
    return Sessions(*torch_sessions(model.encoder, model.decoder, model.dims))


@pytest.fixture(scope="module")
def onnx_sessions(model: LoadedModel, artefact_cache: Path) -> Sessions:
    return built_sessions(model, "fp32", artefact_cache)


@pytest.fixture(scope="module")
def int8_sessions(model: LoadedModel, artefact_cache: Path) -> Sessions:
    return built_sessions(model, "int8", artefact_cache)


def built_sessions(model: LoadedModel, precision: Precision, cache: Path) -> Sessions:
    artefacts = ensure_artefacts(model.checkpoint, Recipe(precision), cache)
    return Sessions(OnnxSession(artefacts.encoder, THREADS), OnnxSession(artefacts.decoder, THREADS))


@pytest.fixture(scope="module", params=["torch", "onnx"])
def sessions(request: pytest.FixtureRequest, torch_pair: Sessions, onnx_sessions: Sessions) -> Sessions:
    return {"torch": torch_pair, "onnx": onnx_sessions}[request.param]


@pytest.fixture(scope="module")
def reference(model: LoadedModel) -> Any:
    return transformers_model(model.dims, model.weights)


@pytest.fixture(scope="module")
def windows(model: LoadedModel, speech: NDArray[Any]) -> Tensor:
    """Two full windows of speech: (2, n_mels, 3000)."""
    log_mel = LogMel(model.dims.n_mels)
    cuts = (speech[start : start + WINDOW_SAMPLES] for start in (0, 14 * SAMPLE_RATE))
    return torch.stack([torch.from_numpy(log_mel(cut)[:, :WINDOW_FRAMES]) for cut in cuts])


@pytest.fixture(scope="module")
def reference_states(reference: Any, windows: Tensor) -> Tensor:
    """What transformers' encoder makes of the windows: (2, 1500, state)."""
    states: Tensor = reference.model.encoder(windows).last_hidden_state
    return states


@pytest.fixture(scope="module")
def cross(sessions: Sessions, windows: Tensor) -> Mapping[str, Tensor]:
    return encode(sessions, windows, [WINDOW_FRAMES, WINDOW_FRAMES])


def encode(
    sessions: Sessions,
    mel: Tensor,
    frame_counts: Sequence[int],
    *,
    position_ids: Tensor | None = None,
    attention_bias: Tensor | None = None,
) -> dict[str, Tensor]:
    """Cross keys and values of each row's frames; where nothing else is said, they are the beginning of the window."""
    batch, positions = len(mel), mel.shape[-1] // FRAMES_PER_POSITION
    return sessions.encoder.run(
        {
            "mel": mel.contiguous(),
            "frame_counts": torch.tensor(frame_counts),
            "position_ids": torch.arange(positions).repeat(batch, 1) if position_ids is None else position_ids,
            "attention_bias": bias_of(frame_counts, positions) if attention_bias is None else attention_bias,
        }
    )


def bias_of(frame_counts: Sequence[int], positions: int) -> Tensor:
    """(batch, positions) float32: 0 for the positions that these frames make, MASKED after them."""
    ends = torch.tensor([positions_of(count) for count in frame_counts])
    return torch.where(torch.arange(positions) < ends[:, None], 0.0, MASKED)


def positions_of(frames: int) -> int:
    return -(-frames // FRAMES_PER_POSITION)


def advance(
    sessions: Sessions, cache: KvCache, rows: Sequence[Sequence[int]], cross: Mapping[str, Tensor], cross_bias: Tensor
) -> Tensor:
    """Feed each row its tokens, however many; → the logits of every step, (batch, steps, vocab)."""
    counts = torch.tensor([len(row) for row in rows])
    steps = int(counts.max())
    inputs = {
        "tokens": torch.tensor([[*row, *[0] * (steps - len(row))] for row in rows]),
        "past_lengths": cache.lengths,
        "logit_positions": torch.arange(steps).repeat(len(rows), 1),
        "cross_bias": cross_bias,
    }
    outputs = sessions.decoder.run({**inputs, **cache.tensors(), **cross})
    cache.append(outputs["new_kv"], counts)
    return outputs["logits"]


def start(model: LoadedModel) -> list[int]:
    tokenizer = model.checkpoint.tokenizer
    return [tokenizer.sot, *tokenizer.task_tokens("en", "transcribe")]


# --- against transformers


def test_cross_keys_and_values(
    model: LoadedModel, reference: Any, reference_states: Tensor, cross: Mapping[str, Tensor]
) -> None:
    heads = model.dims.n_text_head
    for layer, block in enumerate(reference.model.decoder.layers):
        key = block.encoder_attn.k_proj(reference_states).unflatten(-1, (heads, -1)).permute(0, 2, 3, 1)
        value = block.encoder_attn.v_proj(reference_states).unflatten(-1, (heads, -1)).permute(0, 2, 1, 3)
        torch.testing.assert_close(cross[f"cross_key_{layer}"], key, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(cross[f"cross_value_{layer}"], value, rtol=0, atol=TOLERANCE)
    assert len(cross) == 2 * len(reference.model.decoder.layers)


def test_logits_of_prompts_and_steps(
    model: LoadedModel, reference: Any, reference_states: Tensor, sessions: Sessions, cross: Mapping[str, Tensor]
) -> None:
    """A long and a short prompt in one batch, steps that outgrow the cache's first block, then one row alone."""
    tokenizer = model.checkpoint.tokenizer
    text = tokenizer.encode(" It was the age of wisdom, it was the age of foolishness." * 10)
    prompts = [[tokenizer.sot_prev, *text[: BLOCK - 3 - len(start(model))], *start(model)], start(model)]
    continuations = [tokenizer.encode(" It was the best of times,")[:5], tokenizer.encode(" In the year of our")[:5]]
    assert len(prompts[0]) < BLOCK < len(prompts[0]) + 5
    expected = [
        reference(
            decoder_input_ids=torch.tensor([[*prompt, *more]]), encoder_outputs=(reference_states[row, None],)
        ).logits
        for row, (prompt, more) in enumerate(zip(prompts, continuations, strict=True))
    ]
    cache = KvCache(model.dims, 2, CPU)
    bias = torch.zeros(2, WINDOW_POSITIONS)

    logits = advance(sessions, cache, prompts, cross, bias)
    for row, prompt in enumerate(prompts):
        torch.testing.assert_close(logits[row, : len(prompt)], expected[row][0, : len(prompt)], rtol=0, atol=TOLERANCE)
    for step in range(3):
        logits = advance(sessions, cache, [[more[step]] for more in continuations], cross, bias)
        for row, prompt in enumerate(prompts):
            torch.testing.assert_close(logits[row, 0], expected[row][0, len(prompt) + step], rtol=0, atol=TOLERANCE)
    cache.keep(torch.tensor([1]))
    second_row = {name: value[1:].contiguous() for name, value in cross.items()}
    logits = advance(sessions, cache, [continuations[1][3:]], second_row, bias[1:])
    torch.testing.assert_close(logits[0], expected[1][0, len(prompts[1]) + 3 :], rtol=0, atol=TOLERANCE)


def test_greedy_decoding_of_real_speech(model: LoadedModel, sessions: Sessions, windows: Tensor) -> None:
    """That the weights were read right, which no comparison of the same weights can tell."""
    cross = encode(sessions, windows[:1, :, :500], [500])
    cache = KvCache(model.dims, 1, CPU)
    fed, tokens = start(model), []
    for _ in range(10):
        logits = advance(sessions, cache, [fed], cross, torch.zeros(1, 250))
        fed = [int(logits[0, -1].argmax())]
        tokens += fed

    assert "it was the best of times" in model.checkpoint.tokenizer.decode(tokens).lower()


# --- rows of a batch do not touch each other

FRAME_COUNTS = [300, 133, 500]


@pytest.fixture(scope="module")
def padded_batch(windows: Tensor) -> Tensor:
    """Three rows padded with noise, none of which may matter: (3, n_mels, 500)."""
    batch = torch.randn(3, windows.shape[1], max(FRAME_COUNTS), generator=torch.Generator().manual_seed(0))
    for row, count in enumerate(FRAME_COUNTS):
        batch[row, :, :count] = windows[row % 2, :, 500 * row : 500 * row + count]
    return batch


def own_positions(cross: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    """Keys and values of one row up to its length."""
    count = positions_of(FRAME_COUNTS[row])
    return {
        name: value[row : row + 1, :, :, :count] if "key" in name else value[row : row + 1, :, :count]
        for name, value in cross.items()
    }


def row_alone(sessions: Sessions, batch: Tensor, row: int) -> dict[str, Tensor]:
    """Cross keys and values of one row up to its end, with as much padding as makes its frames even."""
    count = FRAME_COUNTS[row]
    return encode(sessions, torch.nn.functional.pad(batch[row : row + 1, :, :count], (0, count % 2)), [count])


def test_a_padded_row_is_encoded_as_if_alone(torch_pair: Sessions, padded_batch: Tensor) -> None:
    together = encode(torch_pair, padded_batch, FRAME_COUNTS)

    for row in range(len(FRAME_COUNTS)):
        part, single = own_positions(together, row), row_alone(torch_pair, padded_batch, row)
        assert part.keys() == single.keys()
        for name, value in single.items():
            torch.testing.assert_close(part[name], value, rtol=0, atol=1e-4)


def test_a_padded_row_is_encoded_as_if_alone_in_int8(int8_sessions: Sessions, padded_batch: Tensor) -> None:
    together = encode(int8_sessions, padded_batch, FRAME_COUNTS)

    for row in range(len(FRAME_COUNTS)):
        part, single = own_positions(together, row), row_alone(int8_sessions, padded_batch, row)
        for name, value in single.items():
            assert relative_error(part[name], value) < INT8_ROW_TOLERANCE, name


def test_cross_positions_beyond_a_rows_length_do_not_matter(
    model: LoadedModel, sessions: Sessions, padded_batch: Tensor
) -> None:
    cross = encode(sessions, padded_batch, FRAME_COUNTS)
    bias = bias_of(FRAME_COUNTS, positions_of(max(FRAME_COUNTS)))
    together = advance(sessions, KvCache(model.dims, 3, CPU), [start(model)] * 3, cross, bias)

    for row, frames in enumerate(FRAME_COUNTS):
        own = {name: value.contiguous() for name, value in own_positions(cross, row).items()}
        single = advance(
            sessions, KvCache(model.dims, 1, CPU), [start(model)], own, torch.zeros(1, positions_of(frames))
        )
        torch.testing.assert_close(together[row : row + 1], single, rtol=0, atol=TOLERANCE)


# --- a position may stand for others


def test_a_position_with_the_logarithm_of_two_counts_twice(model: LoadedModel, sessions: Sessions) -> None:
    """Silence, in which a position differs from its neighbours by its place alone: one place twice, or once for two."""
    silence = torch.full((1, model.dims.n_mels, 2 * 40), -1.0)
    places = torch.cat((torch.arange(0, 31), torch.arange(30, 39)))
    once = torch.cat((torch.arange(0, 30), torch.arange(31, 40)))
    bias = torch.zeros(1, 39)
    bias[0, 30] = math.log(2)

    twice = encode(sessions, silence, [80], position_ids=places[None])
    counted = encode(sessions, silence[:, :, 2:], [78], position_ids=places[once][None], attention_bias=bias)
    for name, value in counted.items():
        dimension = 3 if "key" in name else 2
        torch.testing.assert_close(value, twice[name].index_select(dimension, once), rtol=0, atol=TOLERANCE)

    heard = [
        advance(sessions, KvCache(model.dims, 1, CPU), [start(model)], cross, cross_bias)
        for cross, cross_bias in ((twice, torch.zeros(1, 40)), (counted, bias))
    ]
    torch.testing.assert_close(*heard, rtol=0, atol=TOLERANCE)
    uncounted = advance(sessions, KvCache(model.dims, 1, CPU), [start(model)], counted, torch.zeros(1, 39))
    assert (uncounted - heard[0]).abs().max() > 10 * TOLERANCE


# --- exported graphs against the modules


@pytest.mark.parametrize(("batch", "frames"), [(1, 4), (3, 600), (5, 66)])
def test_exported_encoder(
    torch_pair: Sessions, onnx_sessions: Sessions, windows: Tensor, batch: int, frames: int
) -> None:
    mel = windows[torch.arange(batch) % 2, :, -frames:]
    counts, positions = [max(1, frames - 7 * row) for row in range(batch)], frames // FRAMES_PER_POSITION
    generator = torch.Generator().manual_seed(0)
    places = torch.stack([torch.randperm(WINDOW_POSITIONS, generator=generator)[:positions] for _ in range(batch)])
    bias = bias_of(counts, positions) + torch.rand(batch, positions, generator=generator)
    expected, actual = (
        encode(exported, mel, counts, position_ids=places, attention_bias=bias)
        for exported in (torch_pair, onnx_sessions)
    )

    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("batch", "steps", "past", "wanted", "positions"),
    [(1, 1, 0, 1, 2), (1, 7, 64, 1, 1500), (4, 1, 447, 1, 90), (5, 60, 9, 3, 300)],
)
def test_exported_decoder(
    model: LoadedModel,
    torch_pair: Sessions,
    onnx_sessions: Sessions,
    batch: int,
    steps: int,
    past: int,
    wanted: int,
    positions: int,
) -> None:
    dims, generator = model.dims, torch.Generator().manual_seed(0)
    heads, capacity = (batch, dims.n_text_head), max(2, past)
    inputs = {
        "tokens": torch.randint(dims.n_vocab, (batch, steps), generator=generator),
        "past_lengths": (past - torch.arange(batch)).clamp(min=0),
        "logit_positions": torch.randint(steps, (batch, wanted), generator=generator),
        "cross_bias": bias_of([2 * max(1, positions - row) for row in range(batch)], positions)
        + torch.rand(batch, positions, generator=generator),
    }
    for layer in range(dims.n_text_layer):
        shapes = {"cross_key": (dims.head_dim, positions), "cross_value": (positions, dims.head_dim)}
        for part in ("self_key", "self_value"):
            shapes[part] = (capacity, dims.head_dim)
        inputs |= {
            f"{part}_{layer}": torch.randn(*heads, *shape, generator=generator) for part, shape in shapes.items()
        }
    expected, actual = torch_pair.decoder.run(inputs), onnx_sessions.decoder.run(inputs)

    assert expected["logits"].shape == (batch, wanted, dims.n_vocab)
    torch.testing.assert_close(actual["logits"], expected["logits"], rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(actual["new_kv"], expected["new_kv"], rtol=0, atol=TOLERANCE)


def test_int8_encoder_is_near_the_exact_one(torch_pair: Sessions, int8_sessions: Sessions, windows: Tensor) -> None:
    """Measured: 0.050 for base, 0.084 for tiny.en; the bound leaves room for other speech."""
    exact = encode(torch_pair, windows[:1, :, :600], [600])
    rounded = encode(int8_sessions, windows[:1, :, :600], [600])

    errors = [relative_error(rounded[name], value) for name, value in exact.items()]
    assert 0 < sum(errors) / len(errors) < 0.1


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())
