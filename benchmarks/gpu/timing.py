"""How long the encoder and a decoder step take on a device, with weights of a model's shape, beside the roofline."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from asr.devices import Device
from asr.errors import OutOfMemoryError
from asr.kv_cache import KvCache
from asr.lane import Encoded
from asr.model import Dims
from asr.roofline import POSITIONS_PER_SECOND, PRECISIONS, floor, mean_length
from asr.session import Session
from asr.sessions.cuda_graphs import Capture, GraphedSession
from asr.sessions.pytorch import TorchSession, torch_sessions
from asr.window import FRAMES_PER_POSITION
from benchmarks.gpu.correctness import DTYPES, CountedCapture
from benchmarks.gpu.model import random_networks

TOKENS_PER_SECOND = 10 / 3  # of speech: 100 in 30 s
WARM_UPS = 2
LEFT_OUT = "left out"
STEPS_A_RUN = 4  # a step takes less time than the encoder, and varies more
OUT_OF_MEMORY = (OutOfMemoryError, torch.OutOfMemoryError)


@dataclass(frozen=True)
class Plan:
    """What is timed. positions: of the encoder, 50 a second; repeats: of which the median counts."""

    dims: Dims
    precisions: Sequence[str]
    positions: Sequence[int]
    batches: Sequence[int]
    repeats: int


@dataclass(frozen=True)
class Place:
    """Where it is timed. gpu: what the device can do at best, if that is known; capture: how steps become CUDA graphs,
    None where they cannot."""

    device: torch.device
    gpu: Device | None
    capture: Capture | None


@dataclass(frozen=True)
class Case:
    """precision: of asr.roofline.PRECISIONS; batch: rows, all of so many encoder positions."""

    precision: str
    positions: int
    batch: int

    @property
    def tokens(self) -> int:
        """Decoded of each row."""
        return round(self.positions / POSITIONS_PER_SECOND * TOKENS_PER_SECOND)

    def __str__(self) -> str:
        return f"{self.precision}, {self.positions} positions, batch {self.batch}"


@dataclass(frozen=True)
class Timing:
    """decoder: "eager" or "CUDA graphs"; encoder_s, step_s: seconds of a batch; floor_ms: of a row, by the roofline;
    peak_bytes: of device memory; note: in the place of the figures that it explains the lack of."""

    case: Case
    decoder: str
    encoder_s: float | None = None
    step_s: float | None = None
    floor_ms: float | None = None
    peak_bytes: int | None = None
    note: str = ""

    @property
    def left_out(self) -> bool:
        return self.note == LEFT_OUT

    @property
    def row_ms(self) -> float | None:
        """Of the whole batch, shared among its rows."""
        if self.encoder_s is None or self.step_s is None:
            return None
        return 1000 * (self.encoder_s + self.case.tokens * self.step_s) / self.case.batch


def time_cases(plan: Plan, place: Place, may_go_on: Callable[[float], bool]) -> Iterator[Timing]:
    """The times of every case, or a note of why there are none.

    may_go_on: asked before each case, with the seconds that it may take.
    """
    for precision in plan.precisions:
        encoder, decoder = random_networks(plan.dims, place.device)
        dtype = DTYPES[precision]
        sessions = torch_sessions(encoder.to(dtype), decoder.to(dtype), plan.dims, place.device)
        bench = _Bench(plan, place, *sessions)
        last_s = 0.0
        for positions, batch in itertools.product(plan.positions, plan.batches):
            case = Case(precision, positions, batch)
            if not may_go_on(4 * last_s):  # twice the rows, and room for being wrong
                yield Timing(case, "eager", note=LEFT_OUT)
                continue
            started = time.perf_counter()
            yield from bench.times(case)
            last_s = time.perf_counter() - started


class _Bench:
    """The sessions of one precision."""

    def __init__(self, plan: Plan, place: Place, encoder: TorchSession, decoder: TorchSession) -> None:
        self._plan = plan
        self._place = place
        self._encoder = encoder
        self._decoder = decoder

    def times(self, case: Case) -> Iterator[Timing]:
        """First without CUDA graphs, and then with them where the device has them."""
        release(self._place.device)
        try:
            encoder_s, encoded = time_encoder(self._encoder, self._plan.dims, case, self._plan.repeats)
        except OUT_OF_MEMORY:
            yield Timing(case, "eager", note="out of memory")
            return
        yield self._timing(case, "eager", encoder_s, encoded, lambda: self._decoder)
        if self._place.capture is not None:
            counted = CountedCapture(self._place.capture)
            graphed = partial(GraphedSession, self._decoder, self._plan.dims, counted)
            timing = self._timing(case, "CUDA graphs", encoder_s, encoded, graphed)
            yield timing if counted.replays or timing.note else replace(timing, note="could not be captured")

    def _timing(
        self, case: Case, name: str, encoder_s: float, encoded: Encoded, decoder: Callable[[], Session]
    ) -> Timing:
        dims, gpu, repeats = self._plan.dims, self._place.gpu, self._plan.repeats
        try:
            step_s = time_step(decoder(), dims, case, encoded, repeats)
        except OUT_OF_MEMORY:
            return Timing(case, name, encoder_s, note="out of memory")
        formats, sizes = PRECISIONS[case.precision], {"batch": case.batch, "positions": case.positions}
        bound = floor(dims, gpu, formats, **sizes, tokens=case.tokens) if gpu else None
        return Timing(case, name, encoder_s, step_s, bound.row_ms if bound else None, peak_bytes(self._place.device))


def time_encoder(session: Session, dims: Dims, case: Case, repeats: int) -> tuple[float, Encoded]:
    """Seconds of a batch, and what comes of it.

    Raises:
        OutOfMemoryError: the batch does not fit the device.
    """
    device, dtype, rows = session.device, session.dtype, case.batch
    frames = case.positions * FRAMES_PER_POSITION
    inputs = {
        "mel": torch.randn(rows, dims.n_mels, frames, device=device, dtype=dtype),
        "frame_counts": torch.full((rows,), frames, device=device),
        "position_ids": torch.arange(case.positions, device=device).repeat(rows, 1),
        "attention_bias": torch.zeros(rows, case.positions, device=device, dtype=dtype),
    }
    seconds = _median_s(lambda: session.run(inputs), device, repeats)
    return seconds, Encoded(session.run(inputs), inputs["attention_bias"])


def time_step(session: Session, dims: Dims, case: Case, encoded: Encoded, repeats: int) -> float:
    """Seconds of a decoder step at the mean length of its rows.

    Raises:
        OutOfMemoryError: the batch does not fit the device.
    """
    cache = KvCache(dims, case.batch, session.device, session.dtype)
    cache.lengths += round(mean_length(case.tokens)) - 1  # which counts the step's own token
    token = torch.zeros(case.batch, 1, dtype=torch.int64, device=session.device)
    inputs = {"tokens": token, "past_lengths": cache.lengths, "logit_positions": token, "cross_bias": encoded.bias}
    # As in decoding, the cache's tensors are new ones in every step, and those of cross-attention are not.
    return _median_s(
        lambda: session.run({**inputs, **cache.tensors(), **encoded.cross}), session.device, STEPS_A_RUN * repeats
    )


def _median_s(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Until the device has finished, each time, as decoding waits for every token."""
    for _ in range(WARM_UPS):
        work()
    taken = []
    for _ in range(repeats):
        _synchronize(device)
        started = time.perf_counter()
        work()
        _synchronize(device)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Give back memory that nothing uses any more, and count its peak anew."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
