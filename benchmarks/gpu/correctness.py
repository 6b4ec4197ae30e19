"""Whether a GPU computes what the CPU does, whatever shares a batch, and by CUDA graphs.

Batches are compared step by step with every row given the same text, the one that the reference chose for it: where
each step finds the same likeliest token, decoding freely says the same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from asr.engine import encode
from asr.kv_cache import KvCache
from asr.session import Session
from asr.sessions.cuda_graphs import Capture, GraphedSession, Step
from asr.utterance import Utterance
from benchmarks.gpu.model import Model

CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
TOLERANCES = {"fp32": 1e-3, "fp16": 2e-2}
"""Of the worst step, as a share of its logits; several times what float16 costs tiny.en on a CPU."""
UNDECIDED = 8.0
"""A lead of the likeliest token over the next below so many times the error is a matter of rounding."""


class NotRunError(Exception):
    """A check that this machine cannot run; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """figures: what was found, in a line."""

    passed: bool
    figures: str


@dataclass(frozen=True)
class Bench:
    """What is checked, and where. capture: how steps become CUDA graphs, None where they cannot; steps: decoded for a
    row; mixes: rows that share a batch, by number."""

    model: Model
    utterances: Sequence[Utterance]
    device: torch.device
    capture: Capture | None
    steps: int
    mixes: Sequence[Sequence[int]]

    @cached_property
    def reference(self) -> Reference:
        """float32 on the CPU."""
        encoder, decoder = self.model.sessions(CPU, torch.float32)
        cross = encode(encoder, self.utterances).cross
        return Reference(cross, self.decode(encoder, decoder, self.utterances))

    def decode(
        self, encoder: Session, decoder: Session, utterances: Sequence[Utterance], texts: Tensor | None = None
    ) -> Tensor:
        """Logits after the prefix and after each token of the texts, or where there are none of the likeliest.

        texts: (rows, steps) int64 → (rows, steps, vocab) float32, on the CPU.
        """
        tokenizer, rows = self.model.tokenizer, len(utterances)
        encoded = encode(encoder, utterances)
        cache = KvCache(self.model.dims, rows, decoder.device, decoder.dtype)
        fed = torch.tensor([[tokenizer.sot, *tokenizer.task_tokens("en", "transcribe")]] * rows)
        wanted = torch.tensor([[fed.shape[1] - 1]] * rows)
        logits = []
        for step in range(self.steps):
            inputs = {"tokens": fed.to(decoder.device), "logit_positions": wanted.to(decoder.device)}
            inputs |= {"past_lengths": cache.lengths, "cross_bias": encoded.bias, **cache.tensors(), **encoded.cross}
            outputs = decoder.run(inputs)
            cache.append(outputs["new_kv"], torch.full((rows,), fed.shape[1], device=decoder.device))
            logits.append(outputs["logits"][:, -1].float().cpu())
            fed = (logits[-1].argmax(-1) if texts is None else texts[:, step])[:, None]
            wanted = torch.zeros_like(fed)
        return torch.stack(logits, dim=1)


@dataclass(frozen=True)
class Reference:
    """cross: the encoder's outputs for all rows; logits: (rows, steps, vocab)."""

    cross: Mapping[str, Tensor]
    logits: Tensor

    @property
    def texts(self) -> Tensor:
        return self.logits.argmax(-1)


@dataclass(frozen=True)
class Agreement:
    """error: of the worst step, relative; equal: likeliest tokens, of so many; wrong: unequal, though decided."""

    error: float
    equal: int
    tokens: int
    wrong: int

    def within(self, tolerance: float) -> bool:
        return self.error <= tolerance and not self.wrong

    def __str__(self) -> str:
        return f"logits off by {self.error:.1e}, {self.equal} of {self.tokens} tokens equal"

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            max(self.error, other.error, key=lambda error: (error != error, error)),  # no number is the worst
            self.equal + other.equal,
            self.tokens + other.tokens,
            self.wrong + other.wrong,
        )


NOTHING = Agreement(0.0, 0, 0, 0)


def agreement(actual: Tensor, expected: Tensor) -> Agreement:
    """Of logits (rows, steps, vocab), whose mean over the vocabulary means nothing."""
    actual, expected = (logits - logits.mean(-1, keepdim=True) for logits in (actual, expected))
    size = expected.norm(dim=-1)
    error = float(((actual - expected).norm(dim=-1) / size).max())
    first, second = expected.topk(2, dim=-1).values.unbind(-1)
    decided = first - second > UNDECIDED * error * size / expected.shape[-1] ** 0.5
    equal = actual.argmax(-1) == expected.argmax(-1)
    return Agreement(error, int(equal.sum()), equal.numel(), int((decided & ~equal).sum()))


class CountedCapture:
    """CUDA graphs, and how many were captured and replayed."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self.captures = 0
        self.replays = 0

    def __call__(self, step: Step) -> Step:
        captured = self._capture(step)
        self.captures += 1

        def replay() -> dict[str, Tensor]:
            self.replays += 1
            return captured()

        return replay


def parity(bench: Bench, precision: str) -> Outcome:
    """Against float32 on the CPU."""
    encoder, decoder = bench.model.sessions(bench.device, DTYPES[precision])
    reference, tolerance = bench.reference, TOLERANCES[precision]
    cross = encode(encoder, bench.utterances).cross
    encoder_error = max(relative_error(cross[name], value) for name, value in reference.cross.items())
    found = agreement(bench.decode(encoder, decoder, bench.utterances, reference.texts), reference.logits)
    passed = encoder_error <= tolerance and found.within(tolerance)
    return Outcome(passed, f"encoder off by {encoder_error:.1e}, {found}; at most {tolerance:.0e} is allowed")


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.float().cpu() - expected).norm() / expected.norm())


def batches(bench: Bench, precision: str) -> Outcome:
    """A row alone, repeated and among strangers, in buckets of several sizes."""
    encoder, eager = bench.model.sessions(bench.device, DTYPES[precision])
    decoder = GraphedSession(eager, bench.model.dims, bench.capture) if bench.capture else eager
    alone = [bench.decode(encoder, decoder, [utterance]) for utterance in bench.utterances]
    found = NOTHING
    for mix in bench.mixes:
        expected = torch.cat([alone[row] for row in mix])
        utterances = [bench.utterances[row] for row in mix]
        found += agreement(bench.decode(encoder, decoder, utterances, expected.argmax(-1)), expected)
    sizes = ", ".join(str(len(mix)) for mix in bench.mixes)
    return Outcome(found.within(TOLERANCES[precision]), f"{found}, in batches of {sizes}")


def graphs(bench: Bench, precision: str) -> Outcome:
    """CUDA graphs against the same steps without, all of which have to be replayed."""
    if bench.capture is None:
        raise NotRunError("no CUDA")
    encoder, eager = bench.model.sessions(bench.device, DTYPES[precision])
    counted = CountedCapture(bench.capture)
    graphed = GraphedSession(eager, bench.model.dims, counted)
    found = NOTHING
    for mix in bench.mixes:
        utterances = [bench.utterances[row] for row in mix]
        expected = bench.decode(encoder, eager, utterances)
        found += agreement(bench.decode(encoder, graphed, utterances, expected.argmax(-1)), expected)
    steps = len(bench.mixes) * (bench.steps - 1)  # without the prefix
    replayed = counted.replays - counted.captures  # each is tried once when it is captured
    passed = replayed == steps and found.within(TOLERANCES[precision])
    return Outcome(passed, f"{found}; {replayed} of {steps} steps replayed from {counted.captures} graphs")
