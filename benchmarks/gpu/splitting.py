"""Whether a batch that a GPU has no room for is split, and every row still has its text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from asr.engine import Engine
from asr.memory import HEADROOM, DeviceMemory, batch_bytes
from asr.sessions.pytorch import TorchSession
from asr.transcript import Recognition
from asr.utterance import Utterance
from benchmarks.gpu.correctness import Bench, NotRunError, Outcome

ROOM_FOR = 8  # rows; twice as many are asked for


class Watched:
    """A session that remembers how many rows it was asked for."""

    def __init__(self, session: TorchSession) -> None:
        self._session = session
        self.device, self.dtype = session.device, session.dtype
        self.rows: list[int] = []

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.rows.append(len(inputs["mel"]))
        return self._session.run(inputs)


@dataclass(frozen=True)
class Allotted(DeviceMemory):
    """A device that has so much memory free, whatever it says itself."""

    free: int

    def free_bytes(self) -> int:
        return self.free


def by_estimate(bench: Bench) -> Outcome:
    """A batch that is known not to fit."""
    utterances = _many(bench)
    positions = max(utterance.window.positions for utterance in utterances)
    room = batch_bytes(bench.model.dims, torch.float32, rows=ROOM_FOR, positions=positions)
    return _splitting(bench, utterances, Allotted(bench.device, round(1.5 * HEADROOM * room)), [ROOM_FOR] * 2)


def by_device(bench: Bench) -> Outcome:
    """A batch that the device itself refuses while it runs."""
    if bench.device.type != "cuda":
        raise NotRunError("no CUDA")
    utterances = [replace(utterance, full_window=True) for utterance in _many(bench)]
    half, whole = (_peak_bytes(bench, utterances[:rows]) for rows in (ROOM_FOR, 2 * ROOM_FOR))
    with _limited(bench.device, (half + whole) // 2):
        return _splitting(bench, utterances, None, [2 * ROOM_FOR, ROOM_FOR, ROOM_FOR])


def _many(bench: Bench) -> list[Utterance]:
    return [bench.utterances[row % len(bench.utterances)] for row in range(2 * ROOM_FOR)]


def _splitting(
    bench: Bench, utterances: Sequence[Utterance], memory: DeviceMemory | None, tried: Sequence[int]
) -> Outcome:
    """tried: sizes of the batches that the encoder has to be given."""
    dims, tokenizer = bench.model.dims, bench.model.tokenizer
    encoder, decoder = bench.model.sessions(bench.device, torch.float32)
    watched = Watched(encoder)
    results = Engine(dims, tokenizer, watched, decoder, memory).recognize(utterances)
    engine = Engine(dims, tokenizer, encoder, decoder)
    alone = [engine.recognize([utterance])[0] for utterance in utterances[: len(bench.utterances)]]
    expected = [alone[row % len(alone)] for row in range(len(utterances))]
    equal = sum(
        isinstance(heard, Recognition) and isinstance(single, Recognition) and heard.tokens == single.tokens
        for heard, single in zip(results, expected, strict=True)
    )
    errors = {str(result) for result in results if not isinstance(result, Recognition)}
    passed = equal == len(utterances) and watched.rows == list(tried)
    figures = f"{equal} of {len(utterances)} rows have the text that they have alone; batches of {watched.rows} rows"
    return Outcome(passed, "; ".join((figures, *sorted(errors))))


def _peak_bytes(bench: Bench, utterances: Sequence[Utterance]) -> int:
    encoder, decoder = bench.model.sessions(bench.device, torch.float32)
    torch.cuda.reset_peak_memory_stats(bench.device)
    Engine(bench.model.dims, bench.model.tokenizer, encoder, decoder).recognize(utterances)
    return torch.cuda.max_memory_allocated(bench.device)


@contextmanager
def _limited(device: torch.device, limit_bytes: int) -> Iterator[None]:
    """PyTorch gets no more of the device's memory than this."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
