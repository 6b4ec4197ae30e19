"""How much memory a batch takes, counted in the tensors that a real one makes; and what is let in."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from asr.checkpoint.vocabulary import published_vocabulary
from asr.engine import Engine, encode
from asr.errors import OutOfMemoryError
from asr.features import FRAMES_PER_SECOND
from asr.kv_cache import BLOCK, KvCache
from asr.memory import HEADROOM, DeviceMemory, batch_bytes
from asr.model import (
    Dims,
    build_modules,
)
from asr.roofline import MODELS
from asr.sessions.pytorch import TorchSession, torch_sessions
from asr.tokenizer import Tokenizer
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance
from tests.asr.recorded_graphs import made_by
from tests.asr.reference import random_weights

CPU = torch.device("cpu")
DIMS = Dims(80, 1500, 32, 4, 2, 51_864, 448, 32, 4, 2)
MIB = 1 << 20


@cache
def sessions(dtype: torch.dtype) -> tuple[TorchSession, TorchSession]:
    encoder, decoder = build_modules(DIMS, random_weights(DIMS))
    return torch_sessions(encoder.to(dtype), decoder.to(dtype), DIMS)


def noise(seconds: Sequence[float]) -> list[Utterance]:
    generator = np.random.default_rng(0)
    shapes = [(DIMS.n_mels, round(FRAMES_PER_SECOND * duration)) for duration in seconds]
    english = DecodingOptions(language="en", prompt="Hear, hear!")
    return [Utterance(generator.standard_normal(shape).astype(np.float32), english) for shape in shapes]


# --- what a whole batch takes


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How many bytes the tensors take, at most, that are made meanwhile and not yet gone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._live: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        storages = [made.untyped_storage() for made in made_by(func, result)]
        self._live = {key: size for key, size in self._live.items() if not key.expired()}  # type: ignore[no-untyped-call]
        self._live |= {StorageWeakRef(storage): storage.nbytes() for storage in storages}  # type: ignore[no-untyped-call]
        self.peak = max(self.peak, sum(self._live.values()))
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("seconds", "most_times"),
    [
        pytest.param([30.0] * 2, 1.2, id="long"),
        pytest.param([8.0] * 4, 1.5, id="typical"),
        pytest.param([30.0, 2.0, 1.0, 0.5], 1.2, id="rows that end early"),
        pytest.param([0.3] * 3, 4.0, id="short, for which the cache never grows"),
    ],
)
def test_an_estimate_covers_its_batch(seconds: Sequence[float], most_times: float, dtype: torch.dtype) -> None:
    """And not much more, since a batch that would fit is refused for it. most_times: estimate over what is taken."""
    vocabulary = published_vocabulary(DIMS.n_vocab)
    assert vocabulary is not None
    engine = Engine(DIMS, Tokenizer(vocabulary, DIMS.n_vocab), *sessions(dtype))
    utterances = noise(seconds)
    with LiveBytes() as live:
        results = engine.recognize(utterances)
    positions = max(utterance.window.positions for utterance in utterances)
    estimate = batch_bytes(DIMS, dtype, rows=len(utterances), positions=positions)

    assert all(isinstance(result, Recognition) for result in results)
    assert live.peak <= estimate * HEADROOM
    assert estimate <= most_times * live.peak


# --- what it is made of


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_keys_and_values(dtype: torch.dtype) -> None:
    """A layer more takes as much as its tensors: cross-attention's, and a full cache, twice while that grows."""
    encoder, _ = sessions(dtype)
    encoded = encode(encoder, noise([3.0] * 3))
    rows, positions = encoded.bias.shape
    cache = KvCache(DIMS, rows, CPU, dtype)
    steps = DIMS.n_text_ctx - BLOCK
    shape = (DIMS.n_text_layer, 2, rows, DIMS.n_text_head, steps, DIMS.head_dim)
    cache.append(torch.zeros(shape, dtype=dtype), torch.full((rows,), steps))
    cache.append(torch.zeros(shape, dtype=dtype)[..., :BLOCK, :], torch.full((rows,), BLOCK))
    sizes = {name: tensor.nbytes for name, tensor in {**encoded.cross, **cache.tensors()}.items()}
    deeper = replace(DIMS, n_text_layer=DIMS.n_text_layer + 1)
    more = batch_bytes(deeper, dtype, rows=rows, positions=positions) - batch_bytes(
        DIMS, dtype, rows=rows, positions=positions
    )

    assert cache.capacity == DIMS.n_text_ctx
    assert more == sum(sizes[f"cross_{part}_0"] + 2 * sizes[f"self_{part}_0"] for part in ("key", "value"))


def test_attention_scores() -> None:
    """A head more: its scores in the encoder, before and after the mask is added."""
    rows, positions = 3, 1500
    scores = torch.empty(rows, 1, positions, positions, dtype=torch.float16)
    one_more = replace(DIMS, n_audio_head=DIMS.n_audio_head + 1)
    few, more = (batch_bytes(dims, scores.dtype, rows=rows, positions=positions) for dims in (DIMS, one_more))

    assert more - few == 2 * scores.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_logits(dtype: torch.dtype) -> None:
    """A token more: its logits after two steps of the prefix, and a probability of each, in float32 in any case."""
    logits = torch.empty(5, 2 + 1, 1)
    one_more = replace(DIMS, n_vocab=DIMS.n_vocab + 1)
    few, more = (batch_bytes(dims, dtype, rows=len(logits), positions=100) for dims in (DIMS, one_more))

    assert more - few == logits.nbytes


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
        assert single / 2 < half < single
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
