"""Decoder steps as CUDA graphs: one launch instead of hundreds, which otherwise take longer than the kernels.

A graph has fixed shapes and addresses. So there is one for each bucket of batch, cache capacity and encoder positions;
inputs are copied into buffers that all buckets share, where smaller ones are masked. Cross-attention keys and values,
by far the largest, are the same tensors for all steps of a batch and are copied once.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from asr.errors import OutOfMemoryError, RecognitionError
from asr.model import MASKED, Dims, decoder_input_names
from asr.session import Session

BATCHES = (1, 2, 4, 8, 16, 32)
CAPACITIES = (64, 128, 256, 448)  # tokens
POSITIONS = (256, 384, 512, 768, 1024, 1500)
TOLERANCE = 1e-3
"""Of a replay from the same step run eagerly, relative to the largest value: they run the same kernels."""

logger = logging.getLogger(__name__)


class StepSession(Session, Protocol):
    """A decoder whose steps can be captured."""

    def create_context(self, inputs: Mapping[str, Tensor]) -> Any:
        """Whatever a captured graph needs to have for itself."""
        ...

    def enqueue(self, inputs: Mapping[str, Tensor], context: Any) -> dict[str, Tensor]:
        """Run on the current stream without waiting."""
        ...


Step: TypeAlias = Callable[[], dict[str, Tensor]]
"""Computes outputs from the buffers."""
Capture: TypeAlias = Callable[[Step], Step]
"""Eager step → a step that does the same by a replay, its outputs always in the same tensors."""


def capture_cuda_graph(step: Step) -> Step:
    """Graphs share one pool of memory, which is safe as long as one runs at a time and its outputs are copied."""
    graph = torch.cuda.CUDAGraph()
    # A capture that fails leaves its own stream the current one, which the outer context sets right. The mode: other
    # threads may use CUDA meanwhile.
    with (
        torch.cuda.stream(torch.cuda.current_stream()),
        torch.cuda.graph(graph, pool=_shared_pool(), capture_error_mode="thread_local"),
    ):
        outputs = step()

    def replay() -> dict[str, Tensor]:
        graph.replay()
        return outputs

    return replay


@cache
def _shared_pool() -> Any:
    return torch.cuda.graph_pool_handle()


@dataclass(frozen=True)
class Bucket:
    """Sizes of one graph."""

    batch: int
    capacity: int
    positions: int

    @classmethod
    def of(cls, inputs: Mapping[str, Tensor]) -> Bucket | None:
        """The smallest bucket that holds these inputs; None if they are no single step or none is large enough."""
        batch, steps = inputs["tokens"].shape
        if steps != 1 or inputs["logit_positions"].shape[1] != 1:
            return None
        sizes = (batch, inputs["self_key_0"].shape[2], inputs["cross_bias"].shape[1])
        found = [
            next((size for size in buckets if size >= needed), None)
            for needed, buckets in zip(sizes, (BATCHES, CAPACITIES, POSITIONS), strict=True)
        ]
        return cls(*found) if None not in found else None  # type: ignore[arg-type]

    def shape_of(self, name: str, dims: Dims) -> tuple[int, ...]:
        """Of the decoder's input of this name."""
        heads, head_dim = dims.n_text_head, dims.head_dim
        if name.startswith("self_"):
            return (self.batch, heads, self.capacity, head_dim)
        if name.startswith("cross_key_"):
            return (self.batch, heads, head_dim, self.positions)
        if name.startswith("cross_value_"):
            return (self.batch, heads, self.positions, head_dim)
        return {"past_lengths": (self.batch,), "cross_bias": (self.batch, self.positions)}.get(name, (self.batch, 1))


class GraphedSession:
    """A decoder session that replays single steps; everything else, larger batches too, runs as it is."""

    def __init__(
        self,
        session: StepSession,
        dims: Dims,
        capture: Capture = capture_cuda_graph,
        *,
        max_batch: int = BATCHES[-1],
    ) -> None:
        """
        Raises:
            OutOfMemoryError: the device has no room for the buffers.
        """
        self.device = session.device
        self.dtype = session.dtype
        self._session = session
        self._dims = dims
        self._capture = capture
        self._largest_batch = next((size for size in BATCHES if size >= max_batch), BATCHES[-1])
        try:
            self._buffers = _Buffers(dims, self._largest_batch, session.device, session.dtype)
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError(f"no room for the buffers of CUDA graphs: {error}") from error
        self._steps: dict[Bucket, Step | None] = {}  # None: has to run eagerly

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        bucket = Bucket.of(inputs)
        if bucket is None or bucket.batch > self._largest_batch:
            return self._session.run(inputs)
        try:
            outputs = self._replayed(inputs, bucket)
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError(str(error)) from error
        except RuntimeError as error:
            raise RecognitionError(str(error)) from error
        return self._session.run(inputs) if outputs is None else outputs

    def _replayed(self, inputs: Mapping[str, Tensor], bucket: Bucket) -> dict[str, Tensor] | None:
        """None: steps of this bucket have to run eagerly."""
        if bucket in self._steps and self._steps[bucket] is None:
            return None
        views = self._buffers.load(inputs, bucket)
        if bucket not in self._steps:
            self._steps[bucket] = self._captured(views, bucket)
        step = self._steps[bucket]
        if step is None:
            return None
        outputs, rows = step(), len(inputs["tokens"])
        return {"logits": outputs["logits"][:rows].clone(), "new_kv": outputs["new_kv"][:, :, :rows].clone()}

    @torch.no_grad()
    def _captured(self, views: Mapping[str, Tensor], bucket: Bucket) -> Step | None:
        """A step for these buffers, if it can be captured and does what the eager one does."""
        try:
            eager = partial(self._session.enqueue, views, self._session.create_context(views))
            expected = eager()  # also the first run that capturing needs
            step = self._capture(eager)
            actual = step()
        except (RuntimeError, RecognitionError) as error:  # also of a plan that has no room for so large a bucket
            logger.warning("steps of %s run without a CUDA graph: %s", bucket, error)
            return None
        if not all(_is_same(actual[name], value) for name, value in expected.items()):
            logger.warning("steps of %s run without a CUDA graph: a replay differs from the same step", bucket)
            return None
        return step


def _is_same(actual: Tensor, expected: Tensor) -> bool:
    largest = float(expected.nan_to_num(0.0, 0.0, 0.0).abs().max())
    return torch.allclose(actual, expected, rtol=0.0, atol=TOLERANCE * largest, equal_nan=True)


class _Buffers:
    """One storage for each input, as large as the largest bucket, of which every bucket sees a part."""

    def __init__(self, dims: Dims, batch: int, device: torch.device, dtype: torch.dtype) -> None:
        largest = Bucket(batch, CAPACITIES[-1], POSITIONS[-1])
        integers = ("tokens", "past_lengths", "logit_positions")
        self._dims = dims
        self._storage = {
            name: torch.zeros(
                torch.Size(largest.shape_of(name, dims)).numel(),
                dtype=torch.int64 if name in integers else dtype,
                device=device,
            )
            for name in decoder_input_names(dims)
        }
        self._loaded: dict[str, tuple[weakref.ref[Tensor], int, tuple[int, ...]]] = {}  # keeps no batch alive

    def load(self, inputs: Mapping[str, Tensor], bucket: Bucket) -> dict[str, Tensor]:
        """Copy the inputs to where the bucket's graph reads them, except those that are there already."""
        views = {}
        for name, value in inputs.items():
            shape = bucket.shape_of(name, self._dims)
            view = self._storage[name][: torch.Size(shape).numel()].view(shape)
            views[name] = view
            loaded = self._loaded.pop(name, None)
            if loaded and loaded[0]() is value and loaded[1:] == (value._version, shape):
                self._loaded[name] = loaded
                continue
            if value.shape != shape:  # what lies beyond the inputs is masked, which only a number can be
                view.fill_(MASKED if name == "cross_bias" else 0)
            view[tuple(slice(size) for size in value.shape)].copy_(value)
            self._loaded[name] = (weakref.ref(value), value._version, shape)
        return views
