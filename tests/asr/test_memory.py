"""How much memory a batch takes, counted in the tensors that a real one makes; and what is let in."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch

from asr.checkpoint.vocabulary import published_vocabulary
from asr.engine import Engine, encode, padded_positions
from asr.errors import OutOfMemoryError
from asr.features import FRAMES_PER_SECOND
from asr.kv_cache import BLOCK, KvCache
from asr.memory import HEADROOM, DeviceMemory, batch_bytes, longest_prompt
from asr.model import (
    Dims,
    build_modules,
)
from asr.roofline import MODELS
from asr.sessions.pytorch import TorchSession, torch_sessions
from asr.tokenizer import Tokenizer
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance
from tests.asr.live_bytes import LiveBytes
from tests.asr.reference import random_weights

CPU = torch.device("cpu")
DIMS = Dims(80, 1500, 32, 4, 2, 51_864, 448, 32, 4, 2)
WIDE = replace(DIMS, n_audio_state=384, n_audio_head=2, n_text_state=384, n_text_head=2)
LONG_PROMPT = "It was the best of times, it was the worst of times. " * 30
MIB = 1 << 20


@cache
def sessions(dims: Dims, dtype: torch.dtype) -> tuple[TorchSession, TorchSession]:
    encoder, decoder = build_modules(dims, random_weights(dims))
    return torch_sessions(encoder.to(dtype), decoder.to(dtype), dims)


def engine_with_room(dims: Dims, dtype: torch.dtype, rows: int) -> Engine:
    """With memory for so many rows in flight."""
    vocabulary = published_vocabulary(dims.n_vocab)
    assert vocabulary is not None
    engine = Engine(dims, Tokenizer(vocabulary, dims.n_vocab), *sessions(dims, dtype))
    engine._decoder.reserve(rows)
    return engine


def noise(seconds: Sequence[float], prompt: str = "") -> list[Utterance]:
    generator = np.random.default_rng(0)
    shapes = [(DIMS.n_mels, round(FRAMES_PER_SECOND * duration)) for duration in seconds]
    english = DecodingOptions(language="en", prompt=prompt)
    return [Utterance(generator.standard_normal(shape).astype(np.float32), english) for shape in shapes]


def estimate(dims: Dims, dtype: torch.dtype, utterances: Sequence[Utterance]) -> int:
    return batch_bytes(dims, dtype, rows=len(utterances), positions=padded_positions(utterances))


# --- what a whole batch takes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("dims", "seconds", "prompt", "most_times"),
    [
        pytest.param(DIMS, [30.0] * 2, "Hear, hear!", 1.1, id="long"),
        pytest.param(DIMS, [30.0, 2.0, 1.0, 0.5], "Hear, hear!", 1.1, id="rows that end early"),
        pytest.param(DIMS, [8.0] * 4, LONG_PROMPT, 1.1, id="typical"),
        pytest.param(DIMS, [0.3] * 3, LONG_PROMPT, 1.1, id="short, with a long prompt"),
        pytest.param(DIMS, [0.3] * 3, "Hear, hear!", 3.0, id="short, where a long prompt was possible"),
        pytest.param(WIDE, [2.0] * 4, LONG_PROMPT, 1.2, id="wide"),
        pytest.param(WIDE, [0.3] * 3, LONG_PROMPT, 1.2, id="wide, short"),
    ],
)
def test_an_estimate_covers_its_batch(
    dims: Dims, seconds: Sequence[float], prompt: str, most_times: float, dtype: torch.dtype
) -> None:
    """And not much more, since a batch that would fit is refused for it. most_times: estimate over what is taken."""
    engine = engine_with_room(dims, dtype, len(seconds))
    utterances = noise(seconds, prompt)
    with LiveBytes() as live:
        results = engine.recognize(utterances)

    assert all(isinstance(result, Recognition) for result in results)
    assert live.peak <= HEADROOM * estimate(dims, dtype, utterances)
    assert estimate(dims, dtype, utterances) <= most_times * live.peak


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_estimate_covers_what_joins_others(dtype: torch.dtype) -> None:
    """Whose keys and values make room for longer ones, but not in memory beside their own."""
    engine = engine_with_room(DIMS, dtype, 16)
    engine.start(noise([0.3] * 12))
    joining = noise([3.0], LONG_PROMPT)
    with LiveBytes() as live:
        engine.start(joining)

    assert engine.rows_in_flight == 13
    assert live.peak <= HEADROOM * estimate(DIMS, dtype, joining)


def test_no_prompt_is_longer_than_the_longest() -> None:
    rules = engine_with_room(DIMS, torch.float32, 1)._decoder._rules
    rows = [rules.row(DecodingOptions(prompt=prompt), "en", 1.0) for prompt in ("", LONG_PROMPT)]

    assert [row.sot_index for row in rows] == [0, longest_prompt(DIMS)]


# --- what it is made of


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_keys_and_values(dtype: torch.dtype) -> None:
    """A layer more takes as much as its tensors: cross-attention's, and a cache for the prompt beside what it is."""
    encoder, _ = sessions(DIMS, dtype)
    encoded = encode(encoder, noise([0.5] * 3))
    rows, positions = encoded.bias.shape
    cache, prompt = KvCache(DIMS, rows, CPU, dtype), longest_prompt(DIMS)
    shape = (DIMS.n_text_layer, 2, rows, DIMS.n_text_head, prompt, DIMS.head_dim)
    cache.append(torch.zeros(shape, dtype=dtype), torch.full((rows,), prompt))
    sizes = {name: tensor.nbytes for name, tensor in {**encoded.cross, **cache.tensors()}.items()}
    deeper = replace(DIMS, n_text_layer=DIMS.n_text_layer + 1)
    few, more = (batch_bytes(dims, dtype, rows=rows, positions=positions) for dims in (DIMS, deeper))

    assert more - few == sum(sizes[f"cross_{part}_0"] + 2 * sizes[f"self_{part}_0"] for part in ("key", "value"))


def test_attention_scores_of_the_encoder() -> None:
    """A head more: its scores, before and after the mask is added."""
    rows, positions = 3, 1500
    scores = torch.empty(rows, 1, positions, positions, dtype=torch.float16)
    one_more = replace(DIMS, n_audio_head=DIMS.n_audio_head + 1)
    few, more = (batch_bytes(dims, scores.dtype, rows=rows, positions=positions) for dims in (DIMS, one_more))

    assert more - few == 2 * scores.nbytes


@pytest.mark.parametrize("positions", [100, 300])
def test_attention_scores_of_prompts(positions: int) -> None:
    """A head more: its scores of itself and an empty cache, or of the encoder's positions, if those are more."""
    rows, prompt = 3, longest_prompt(DIMS)
    scores = torch.empty(rows, 1, prompt, max(positions, BLOCK + prompt), dtype=torch.float16)
    dims = replace(DIMS, n_audio_head=1, n_text_head=8)
    one_more = replace(dims, n_text_head=9)
    few, more = (batch_bytes(dims, scores.dtype, rows=rows, positions=positions) for dims in (dims, one_more))

    assert more - few == 2 * scores.nbytes


def test_more_of_anything_takes_more() -> None:
    for dims in MODELS.values():
        for dtype in (torch.float32, torch.float16):
            by_positions = [
                batch_bytes(dims, dtype, rows=4, positions=positions) for positions in range(1, dims.n_audio_ctx + 1)
            ]
            assert by_positions == sorted(set(by_positions))
            alone, together = (batch_bytes(dims, dtype, rows=rows, positions=400) for rows in (1, 9))
            assert together == 9 * alone
        half, single = (batch_bytes(dims, dtype, rows=4, positions=400) for dtype in (torch.float16, torch.float32))
        assert single / 2 <= half < single
    by_size = [batch_bytes(MODELS[size], torch.float16, rows=1, positions=1500) for size in ("tiny", "base", "small")]
    assert by_size == sorted(set(by_size))


# --- what is let in


@dataclass(frozen=True)
class Available(DeviceMemory):
    """A device with so much memory free."""

    available: int

    def free_bytes(self) -> int:
        return self.available


def test_a_batch_is_let_in_with_headroom() -> None:
    needed = 100 * MIB
    Available(CPU, round(HEADROOM * needed)).admit(needed)
    Available(CPU, 0).admit(0)

    with pytest.raises(OutOfMemoryError, match=r"100 MiB.*119 MiB"):
        Available(CPU, round(HEADROOM * needed) - 1).admit(needed)


def test_what_is_free_is_asked_each_time() -> None:
    """Other processes may share the device."""
    free = iter((MIB, 3 * MIB))

    class Filling(DeviceMemory):
        def free_bytes(self) -> int:
            return next(free)

    memory = Filling(CPU)
    with pytest.raises(OutOfMemoryError) as refused:
        memory.admit(2 * MIB)
    memory.admit(2 * MIB)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
