"""Moving the spread of channels into weights changes no result."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asr.build.calibration import Activation
from asr.build.smoothing import smooth
from asr.kv_cache import KvCache
from asr.model import MASKED, Decoder, Dims, Encoder, build_modules

SMOOTHED = ("query", "key", "value", "out", "mlp.0")
"""Layers that read what can be divided where it is made. What mlp.2 reads comes out of a GELU, which cannot."""


def modules_of(dims: Dims, weights: Mapping[str, Tensor]) -> tuple[Encoder, Decoder]:
    """In float64, with weights of their own."""
    encoder, decoder = build_modules(dims, {name: value.double() for name, value in weights.items()})
    return encoder, decoder


def linear_layers(encoder: Encoder, decoder: Decoder) -> dict[str, nn.Linear]:
    both = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    return {name: layer for name, layer in both.named_modules() if isinstance(layer, nn.Linear)}


# --- the network is the same


def results(dims: Dims, encoder: Encoder, decoder: Decoder) -> dict[str, Tensor]:
    """What two rows, one of them padded, come to: a prefix of three tokens and two, and a step after it.

    Values are left out, which are of another size after smoothing, until what reads them undoes it.
    """
    layers, generator = dims.n_text_layer, torch.Generator().manual_seed(0)
    mel = torch.randn(2, dims.n_mels, 16, generator=generator).double()
    bias = torch.tensor([[0.0] * 8, [0.0] * 5 + [MASKED] * 3]).double()
    cross = encoder(mel, torch.tensor([16, 9]), torch.arange(8).repeat(2, 1), bias)
    cache = KvCache(dims, 2, torch.device("cpu"), torch.float64)
    found = {f"cross key {layer}": cross[2 * layer] for layer in range(layers)}
    for tokens, counts in (([[5, 6, 7], [8, 9, 0]], [3, 2]), ([[3], [4]], [1, 1])):
        wanted = torch.tensor(counts)[:, None] - 1
        logits, new_kv = decoder(torch.tensor(tokens), cache.lengths, wanted, bias, *cache.tensors().values(), *cross)
        cache.append(new_kv, torch.tensor(counts))
        found |= {f"logits of {len(tokens[0])}": logits, f"keys of {len(tokens[0])}": new_kv[:, 0]}
    return found


@torch.no_grad()
def with_maxima(channel_maxima: NDArray[np.float32]) -> Activation:
    """The rest is not looked at."""
    return Activation(channel_maxima, range=math.nan, mean_square=math.nan)


def test_nothing_else_comes_out(small_dims: Dims, small_weights: Mapping[str, Tensor]) -> None:
    encoder, decoder = modules_of(small_dims, small_weights)
    layers, generator = linear_layers(encoder, decoder), np.random.default_rng(0)
    maxima = {
        name: np.exp(2 * generator.standard_normal(layer.in_features)).astype(np.float32)
        for name, layer in layers.items()
    }
    before = results(small_dims, encoder, decoder)
    weights = {name: layer.weight.clone() for name, layer in layers.items()}
    smooth(encoder, decoder, {name: with_maxima(value) for name, value in maxima.items()})
    after = results(small_dims, encoder, decoder)

    for name, expected in before.items():
        torch.testing.assert_close(after[name], expected, rtol=0, atol=1e-9)
    for name, layer in layers.items():
        changed = (layer.weight - weights[name]).abs().amax() > 0.01
        assert changed == name.endswith(SMOOTHED), name


# --- how much is moved

DIMS = Dims(80, 20, 2, 1, 1, 51_864, 12, 2, 1, 1)
FACTORS = torch.tensor([2.0, 0.5], dtype=torch.float64)
"""√16 and √1 over weights of 1, less their geometric mean."""


def expected_weight(name: str, before: Tensor) -> Tensor:
    """After smoothing, where a matrix holds 1 and -1 and all activations reach 16 in one channel, 1 in the other."""
    layer, kind = name.rsplit(".", 1)
    if layer.endswith(("attn_ln", "mlp_ln", "ln_post")):
        return before / FACTORS
    after = before
    if layer.endswith("value"):
        after = after / (FACTORS if kind == "bias" else FACTORS[:, None])
    if kind == "weight" and layer.endswith(SMOOTHED):
        after = after * FACTORS
    return after


@pytest.fixture
def level() -> tuple[Encoder, Decoder]:
    """Two channels, and 1 or -1 in every place of a matrix."""
    generator = torch.Generator().manual_seed(0)
    encoder, decoder = Encoder(DIMS).double(), Decoder(DIMS).double()
    for parameter in (*encoder.parameters(), *decoder.parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.copy_(noise.sign() if parameter.ndim == 2 else noise)
    return encoder, decoder


def test_the_spread_is_split_evenly(level: tuple[Encoder, Decoder]) -> None:
    """16 to 1 in the activations becomes 4 to 1 there, and 4 to 1 in the weights."""
    both = nn.ModuleDict({"encoder": level[0], "decoder": level[1]})
    before = {name: value.clone() for name, value in both.state_dict().items()}
    spread, unused = np.array([16, 1], np.float32), np.array([], np.float32)
    smooth(
        *level,
        {
            name: with_maxima(spread if layer.in_features == 2 else unused)
            for name, layer in linear_layers(*level).items()
        },
    )

    for name, value in both.state_dict().items():
        torch.testing.assert_close(value, expected_weight(name, before[name]), rtol=1e-12, atol=0)
    query = level[0].get_submodule("blocks.0.attn.query")
    assert isinstance(query, nn.Linear)
    assert query.weight.abs().amax(dim=0).tolist() == pytest.approx([2, 0.5])
    assert (torch.tensor([16, 1]) / FACTORS).tolist() == [8, 2]


@pytest.mark.parametrize(
    ("maxima", "weights", "factors"),
    [
        ([1, 1], [1, 1], [1, 1]),
        ([3, 3], [5, 5], [1, 1]),
        ([4, 1], [4, 1], [1, 1]),
        ([4, 1], [1, 4], [4**0.5 * 4**0.5 / 2, 0.5]),
        ([0, 1], [1, 1], [1e-5**0.25, 1e-5**-0.25]),
        ([1, 1], [0, 1], [1e-5**-0.25, 1e-5**0.25]),
    ],
    ids=["level", "any size", "alike", "opposite", "silent channel", "unused channel"],
)
def test_factors(
    level: tuple[Encoder, Decoder], maxima: list[float], weights: list[float], factors: list[float]
) -> None:
    """Of the feed-forward network of the encoder's layer."""
    block = level[0].get_submodule("blocks.0")
    reader, norm = block.get_submodule("mlp.0"), block.get_submodule("mlp_ln")
    assert isinstance(reader, nn.Linear)
    assert isinstance(norm, nn.LayerNorm)
    reader.weight.data *= torch.tensor(weights)
    before = reader.weight.clone(), norm.weight.clone(), norm.bias.clone()
    activations = {name: with_maxima(np.ones(2, np.float32)) for name in linear_layers(*level)}
    smooth(*level, {**activations, "encoder.blocks.0.mlp.0": with_maxima(np.array(maxima, np.float32))})

    expected = torch.tensor(factors, dtype=torch.float64)
    torch.testing.assert_close(reader.weight.data, before[0] * expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(norm.weight.data, before[1] / expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(norm.bias.data, before[2] / expected, rtol=1e-6, atol=0)


def test_layers_that_share_an_activation_share_its_factors(level: tuple[Encoder, Decoder]) -> None:
    """By the largest of their weights."""
    attention = level[0].get_submodule("blocks.0.attn")
    query, key = attention.get_submodule("query"), attention.get_submodule("key")
    assert isinstance(query, nn.Linear)
    assert isinstance(key, nn.Linear)
    query.weight.data[:, 0], key.weight.data[:, 0] = 0.25, 16
    smooth(*level, {name: with_maxima(np.ones(2, np.float32)) for name in linear_layers(*level)})

    assert query.weight.abs().amax(dim=0).tolist() == pytest.approx([0.25 / 2, 2])
    assert key.weight.abs().amax(dim=0).tolist() == pytest.approx([16 / 2, 2])
