"""The network, as PyTorch modules and as exported graphs, against transformers with the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.features import WINDOW_FRAMES
from asr.kv_cache import BLOCK, KvCache
from asr.window import WINDOW_POSITIONS
from tests.asr.network_runs import CPU, TOLERANCE, Sessions, advance, encode, start
from tests.asr.reference import LoadedModel, transformers_model


@pytest.fixture(scope="module")
def reference(model: LoadedModel) -> Any:
    return transformers_model(model.dims, model.weights)


@pytest.fixture(scope="module")
def reference_states(reference: Any, windows: Tensor) -> Tensor:
    """What transformers' encoder makes of the windows: (2, 1500, state)."""
    states: Tensor = reference.model.encoder(windows).last_hidden_state
    return states


@pytest.fixture(scope="module")
def cross(sessions: Sessions, windows: Tensor) -> Mapping[str, Tensor]:
    return encode(sessions, windows, [WINDOW_FRAMES, WINDOW_FRAMES])


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
    cache.remove(0)
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
