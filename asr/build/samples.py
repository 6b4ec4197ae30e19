"""Inputs of the kind that a model meets, for tools that have to run a graph once: a second of noise, and a prompt."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from asr.engine import encoder_inputs
from asr.features import SAMPLE_RATE, LogMel
from asr.kv_cache import KvCache
from asr.model import Dims
from asr.utterance import Utterance

LOUDNESS = 0.1  # of full scale
POSITIONS, PAST_TOKENS = 32, 3


def encoder_sample(dims: Dims) -> dict[str, Tensor]:
    """Of one row, as the graph is given it."""
    noise = np.random.default_rng(0).standard_normal(SAMPLE_RATE).astype(np.float32) * LOUDNESS
    return encoder_inputs([Utterance(LogMel(dims.n_mels)(noise))])


def decoder_sample(dims: Dims) -> dict[str, Tensor]:
    """Of one row and one step, after a few tokens."""
    generator = torch.Generator().manual_seed(0)
    cache = KvCache(dims, 1, torch.device("cpu"))
    cross_key, cross_value = (dims.n_text_head, dims.head_dim, POSITIONS), (dims.n_text_head, POSITIONS, dims.head_dim)
    cross = {
        f"cross_{part}_{layer}": torch.randn(1, *shape, generator=generator)
        for layer in range(dims.n_text_layer)
        for part, shape in (("key", cross_key), ("value", cross_value))
    }
    return {
        "tokens": torch.zeros(1, 1, dtype=torch.int64),
        "past_lengths": torch.tensor([PAST_TOKENS]),
        "logit_positions": torch.zeros(1, 1, dtype=torch.int64),
        "cross_bias": torch.zeros(1, POSITIONS),
        **cache.tensors(),
        **cross,
    }
