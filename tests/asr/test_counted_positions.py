"""A position of the audio may stand for others, with the logarithm of their number as its bias."""

from __future__ import annotations

import math

import torch

from asr.kv_cache import KvCache
from tests.asr.network_runs import CPU, TOLERANCE, Sessions, advance, encode, start
from tests.asr.reference import LoadedModel


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
