"""What int8 costs, layer by layer, and which layers to leave out of it.

A sweep quantises one group of products at a time and measures how far the model's next-token distribution moves from
float32's on real speech (Kullback-Leibler divergence, in nats a token). Groups are then taken into int8 in the order of
their cost for the work that they save, as many as the allowed increase of the word error rate and MAX_DIVERGENCE let
in; both are measured for a prefix of the order at a time, by bisection. The error rate of a set that one can have is
too coarse alone: in a few hundred words, a placement that ruins other clips or another language goes unnoticed.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import onnx
import torch
from onnx import ModelProto
from torch import Tensor
from tqdm import tqdm

from asr.build.calibration import Recording, utterances_of
from asr.build.error_rate import error_rate
from asr.build.products import products_of
from asr.checkpoint.normalised import Checkpoint
from asr.engine import Engine, encode
from asr.errors import AsrError
from asr.kv_cache import KvCache
from asr.lane import Encoded
from asr.model import Dims
from asr.session import Session
from asr.sessions.onnxruntime import OnnxSession
from asr.transcript import Recognition
from asr.utterance import Utterance

Placement: TypeAlias = Mapping[str, frozenset[str]]
"""Graph ("encoder" or "decoder") → names of its products that are in int8."""
Quantize: TypeAlias = Callable[[str, frozenset[str]], ModelProto]
"""Graph and names of products → the float32 graph with these in int8."""

SWEPT_UTTERANCES = 12
RECOGNISED_TOGETHER = 16
MAX_DIVERGENCE = 0.005  # nats a token
TYPICAL_POSITIONS, TYPICAL_TOKENS = 400, 25  # 8 s of speech


@dataclass(frozen=True)
class Group:
    """Products of one part of a layer, quantised together. name: such as `encoder.blocks.3.mlp.0`."""

    name: str
    graph: str
    products: frozenset[str]


@dataclass(frozen=True)
class Sensitivity:
    """What one group costs and gives in int8.

    divergence: mean over tokens, in nats, of the output from float32's; share: of the multiplications of all products,
    for an utterance of 8 s.
    """

    group: str
    divergence: float
    share: float


@dataclass(frozen=True)
class Trial:
    """One placement that was measured. quantized: how many groups are in int8; share: as for a group;
    error_rate: in per cent, None where the divergence alone was too much."""

    quantized: int
    share: float
    divergence: float
    error_rate: float | None


@dataclass(frozen=True)
class Choice:
    """placement: what is in int8; order: every group, the first to be quantised first; trials: what was measured on the
    way; float_error_rate: of float32, in per cent. quantized: how many groups of the order are in int8."""

    placement: Placement
    order: tuple[Sensitivity, ...]
    trials: tuple[Trial, ...]
    float_error_rate: float
    quantized: int

    def as_json(self) -> dict[str, object]:
        return {
            "order": [asdict(sensitivity) for sensitivity in self.order],
            "trials": [asdict(trial) for trial in self.trials],
            "float_error_rate": self.float_error_rate,
            "quantized": self.quantized,
        }


def groups_of(graph: str, names: Iterable[str]) -> list[Group]:
    """Query and key together, everything else by itself: they share an activation and go into the same scores."""
    members: dict[str, set[str]] = {}
    for name in names:
        members.setdefault(re.sub(r"\.attn\.(query|key)$", ".attn.query_key", name), set()).add(name)
    return [Group(f"{graph}.{name}", graph, frozenset(products)) for name, products in members.items()]


def choose_placement(
    checkpoint: Checkpoint,
    graphs: Mapping[str, Path],
    candidates: Placement,
    quantize: Quantize,
    recordings: Sequence[Recording],
    *,
    max_error_increase: float,
    max_divergence: float = MAX_DIVERGENCE,
    threads: int,
) -> Choice:
    """The largest set of groups, in the order of their sensitivity, that costs at most so many points of error rate and
    so much divergence, in nats a token.

    graphs: the float32 graphs; candidates: products that may be in int8; recordings: with texts.

    Raises:
        RecognitionError: the model fails on one of the recordings.
    """
    bench = _Bench(checkpoint, graphs, candidates, quantize, recordings, threads)
    float_error_rate = bench.error_rate({})
    order = tuple(sorted(bench.sweep(), key=lambda sensitivity: sensitivity.divergence / sensitivity.share))
    by_name = {group.name: group for group in bench.groups}

    def placement(quantized: int) -> Placement:
        taken = [by_name[sensitivity.group] for sensitivity in order[:quantized]]
        return {
            graph: frozenset().union(*(group.products for group in taken if group.graph == graph)) for graph in graphs
        }

    trials: list[Trial] = []

    def is_within(quantized: int) -> bool:
        divergence = bench.divergence(placement(quantized))
        rate = bench.error_rate(placement(quantized)) if divergence <= max_divergence else None
        trials.append(Trial(quantized, sum(one.share for one in order[:quantized]), divergence, rate))
        return rate is not None and rate - float_error_rate <= max_error_increase

    most = largest_within(len(order), is_within)
    return Choice(placement(most), order, tuple(trials), float_error_rate, most)


def largest_within(count: int, is_within: Callable[[int], bool]) -> int:
    """The largest number up to count that is within, by bisection; 0 is taken to be within."""
    if is_within(count):
        return count
    within, beyond = 0, count
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if is_within(middle):
            within = middle
        else:
            beyond = middle
    return within


class _Bench:
    """The float32 model, what it says, and variants of it that are compared."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        graphs: Mapping[str, Path],
        candidates: Placement,
        quantize: Quantize,
        recordings: Sequence[Recording],
        threads: int,
    ) -> None:
        self._checkpoint = checkpoint
        self._quantize = quantize
        self._recordings = [recording for recording in recordings if recording.text]
        self._threads = threads
        self._exact = {graph: OnnxSession(path, threads) for graph, path in graphs.items()}
        self._sizes = {graph: _multiplications(path) for graph, path in graphs.items()}
        self.groups = [
            group
            for graph, sizes in self._sizes.items()
            for group in groups_of(graph, (name for name in sizes if name in candidates[graph]))
        ]
        self._utterances = utterances_of(self._recordings, checkpoint)
        swept = self._utterances[:: max(1, len(self._utterances) // SWEPT_UTTERANCES)][:SWEPT_UTTERANCES]
        said = self._recognize(self._exact, swept)
        self._forced = _TeacherForcing(checkpoint, swept, said)
        self._expected = self._forced.log_probabilities(self._exact)

    def sweep(self) -> list[Sensitivity]:
        """Quantise each group alone."""
        total = sum(sum(sizes.values()) for sizes in self._sizes.values())
        found = []
        for group in tqdm(self.groups, desc="sweeping", unit="group"):
            size = sum(self._sizes[group.graph][name] for name in group.products)
            found.append(Sensitivity(group.name, self.divergence({group.graph: group.products}), size / total))
        return found

    def divergence(self, placement: Placement) -> float:
        """Of the model with these products in int8, in nats a token."""
        expected, actual = self._expected, self._forced.log_probabilities(self._variant(placement))
        return max(0.0, float((expected.exp() * (expected - actual)).sum(-1).mean()))

    def error_rate(self, placement: Placement) -> float:
        """Of the model with these products in int8, over all recordings, in per cent."""
        said = self._recognize(self._variant(placement), self._utterances)
        return error_rate(
            (recording.text or "", recognition.text, recording.language)
            for recording, recognition in zip(self._recordings, said, strict=True)
        )

    def _variant(self, placement: Placement) -> dict[str, Session]:
        return {**self._exact, **{graph: self._session(graph, names) for graph, names in placement.items() if names}}

    def _session(self, graph: str, names: frozenset[str]) -> OnnxSession:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{graph}.onnx"
            onnx.save_model(self._quantize(graph, names), path)
            return OnnxSession(path, self._threads)

    def _recognize(self, sessions: Mapping[str, Session], utterances: Sequence[Utterance]) -> list[Recognition]:
        engine = Engine(self._checkpoint.dims, self._checkpoint.tokenizer, sessions["encoder"], sessions["decoder"])
        by_length = sorted(range(len(utterances)), key=lambda index: utterances[index].frames)
        results: dict[int, Recognition] = {}
        for start in range(0, len(by_length), RECOGNISED_TOGETHER):
            indices = by_length[start : start + RECOGNISED_TOGETHER]
            for index, result in zip(indices, engine.recognize([utterances[i] for i in indices]), strict=True):
                if isinstance(result, AsrError):
                    raise result
                results[index] = result
        return [results[index] for index in range(len(utterances))]


class _TeacherForcing:
    """Utterances with what float32 hears in them, run through a model in one pass."""

    def __init__(self, checkpoint: Checkpoint, utterances: Sequence[Utterance], said: Sequence[Recognition]) -> None:
        tokenizer = checkpoint.tokenizer
        self._dims = checkpoint.dims
        self._utterances = utterances
        prefixes = [[tokenizer.sot, *tokenizer.task_tokens(one.language, "transcribe")] for one in said]
        rows = [[*prefix, *one.tokens] for prefix, one in zip(prefixes, said, strict=True)]
        longest = max(map(len, rows))
        self._tokens = torch.full((len(rows), longest), tokenizer.eot)
        counts = torch.zeros(self._tokens.shape, dtype=torch.bool)
        for index, (row, prefix) in enumerate(zip(rows, prefixes, strict=True)):
            self._tokens[index, : len(row)] = torch.tensor(row)
            counts[index, len(prefix) - 1 : len(row)] = True  # where a token of the text, or its end, is predicted
        self._counts = counts

    def log_probabilities(self, sessions: Mapping[str, Session]) -> Tensor:
        """(tokens, vocab) float32: of what follows each token of the texts."""
        encoded = encode(sessions["encoder"], self._utterances)
        logits = _prefill(sessions["decoder"], encoded, self._dims, self._tokens)
        return torch.log_softmax(logits[self._counts], dim=-1)


def _prefill(session: Session, encoded: Encoded, dims: Dims, tokens: Tensor) -> Tensor:
    """(batch, steps) → logits after every token, (batch, steps, vocab)."""
    cache = KvCache(dims, len(tokens), session.device, session.dtype)
    steps = torch.arange(tokens.shape[1]).expand_as(tokens).contiguous()
    inputs = {"tokens": tokens, "past_lengths": cache.lengths, "logit_positions": steps, "cross_bias": encoded.bias}
    return session.run({**inputs, **cache.tensors(), **encoded.cross})["logits"].float()


def _multiplications(graph: Path) -> dict[str, int]:
    """Name of each product → multiplications for an utterance of 8 s."""
    per_utterance = TYPICAL_POSITIONS if graph.stem == "encoder" else TYPICAL_TOKENS
    return {name: product.weight.size * per_utterance for name, product in products_of(onnx.load(graph)).items()}
