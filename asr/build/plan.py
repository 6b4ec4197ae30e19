"""ONNX graph → TensorRT plan: kernels chosen and compiled for one kind of GPU and ranges of input sizes.

Sizes are given as profiles, of which a plan has one or more: ranges of the graph's dimensions by the names that they
have in it, such as "batch". A name with a factor, such as "2*positions", is derived. The precision is the graph's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from asr.errors import EngineBuildError
from asr.kv_cache import BLOCK
from asr.model import Dims
from asr.tensorrt_library import Message, TensorRTLibrary, load_tensorrt
from asr.window import FRAMES_PER_POSITION

NATIVE = "native"
PROMPT_TOKENS = 32  # of a prompt of a sentence or two
DIMENSION = re.compile(r"(?:(?P<factor>\d+)\*)?(?P<name>\w+)")
IGNORED_INPUT = re.compile(r"unused input|is unused", re.IGNORECASE)

T = TypeVar("T")


@dataclass(frozen=True)
class SizeRange:
    """Sizes of one dimension, in TensorRT's terms: from `min` to `max`, and the fastest at `opt`."""

    min: int
    opt: int
    max: int

    def __str__(self) -> str:
        return f"{self.min}..{self.opt}..{self.max}"

    def times(self, factor: int) -> SizeRange:
        return SizeRange(self.min * factor, self.opt * factor, self.max * factor)


Profile: TypeAlias = Mapping[str, SizeRange]
"""Name of a dimension → its sizes."""


@dataclass(frozen=True)
class PlanOptions:
    """For which GPU and how thoroughly a plan is built.

    target: "native", the GPU of this machine, or a compute capability such as "sm75"; optimization_level: 0 to 5, the
    higher the longer TensorRT looks for fast kernels; workspace_bytes: bound of the memory for intermediate results.
    """

    target: str = NATIVE
    optimization_level: int = 5
    workspace_bytes: int | None = None


def encoder_profiles(dims: Dims, max_batch: int, frames: tuple[int, int, int]) -> list[Profile]:
    """The one profile of the encoder. frames: log-mel frames of a row, least, typical and most, all even.

    Raises:
        ValueError: the model has no such frames.
    """
    return [_rows(dims, max_batch, frames)]


def decoder_profiles(dims: Dims, max_batch: int, frames: tuple[int, int, int]) -> list[Profile]:
    """The two profiles of the decoder, of which each set of inputs fits one: TensorRT has other kernels for many steps.

    First the prompt, which finds the cache empty, then the single step. frames: as for the encoder.

    Raises:
        ValueError: the model has no such frames.
    """
    rows = _rows(dims, max_batch, frames)
    one = SizeRange(1, 1, 1)
    longest_prompt = dims.n_text_ctx // 2
    largest_capacity = -(-dims.n_text_ctx // BLOCK) * BLOCK
    prompt = {
        "steps": SizeRange(2, min(PROMPT_TOKENS, longest_prompt), longest_prompt),
        "wanted": one,
        "capacity": SizeRange(BLOCK, BLOCK, BLOCK),
    }
    step = {
        "steps": one,
        "wanted": one,
        "capacity": SizeRange(BLOCK, min(2 * BLOCK, largest_capacity), largest_capacity),
    }
    return [{**rows, **prompt}, {**rows, **step}]


def _rows(dims: Dims, max_batch: int, frames: tuple[int, int, int]) -> Profile:
    most = dims.n_audio_ctx * FRAMES_PER_POSITION
    if any(count % FRAMES_PER_POSITION for count in frames) or frames[-1] > most:
        raise ValueError(f"{frames} frames: they must be multiples of {FRAMES_PER_POSITION}, and at most {most}")
    positions = SizeRange(*(count // FRAMES_PER_POSITION for count in frames))
    return {"batch": SizeRange(1, max_batch, max_batch), "positions": positions}  # a busy service has full batches


def build_plan(
    graph: Path,
    profiles: Sequence[Profile],
    limits: Mapping[str, tuple[int, int]],
    options: PlanOptions,
    library: TensorRTLibrary | None = None,
) -> bytes:
    """Compile `graph`, which takes seconds to many minutes.

    limits: name of every dimension → the least and the most that the graph takes.

    Raises:
        EngineBuildError: no plan can be made of this graph with these profiles and options, or it would ignore an
            input of the graph.
        ArtefactError: TensorRT is not installed.
    """
    library = library or load_tensorrt()
    with library.messages.collect() as messages:
        build = _Build(graph, library, messages)
        build.parse()
        build.configure(options)
        for profile in profiles:
            build.check(profile, limits)
            build.add(profile)
        return build.serialized()


class _Build:
    """One build: TensorRT's objects, which must outlive each other, and what TensorRT has said so far."""

    def __init__(self, graph: Path, library: TensorRTLibrary, messages: Sequence[Message]) -> None:
        self._graph = graph
        self._library = library
        self._trt = library.module
        self._messages = messages
        try:
            self._builder = self._trt.Builder(library.logger)
        except TypeError as error:  # what pybind11 makes of a null pointer
            raise self._error(f"{library} cannot build here, for want of a GPU or its driver") from error
        flags = 1 << int(self._trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        self._network = self._made(self._builder.create_network(flags), "network")
        self._config = self._made(self._builder.create_builder_config(), "configuration")

    def parse(self) -> None:
        try:
            content = self._graph.read_bytes()
        except OSError as error:
            raise self._error(f"cannot be read ({error})") from error
        self._parser = self._trt.OnnxParser(self._network, self._library.logger)  # has the weights, so it is kept
        if not self._parser.parse(content, str(self._graph)):
            problems = [self._parser.get_error(index) for index in range(self._parser.num_errors)]
            reasons = "; ".join(f"{problem.node_operator()} {problem.desc()}".strip() for problem in problems)
            raise self._error(f"{self._library} cannot read it ({reasons})")
        if not self._network.num_outputs:  # the parser takes any bytes that happen to be a message for an empty graph
            raise self._error("is not an ONNX graph")

    def configure(self, options: PlanOptions) -> None:
        config, level, workspace = self._config, options.optimization_level, options.workspace_bytes
        config.builder_optimization_level = level  # clipped or ignored rather than refused
        if config.builder_optimization_level != level:
            raise self._error(f"{self._library} has no optimization level {level}")
        if workspace is not None:
            pool = self._trt.MemoryPoolType.WORKSPACE
            if workspace > 0:
                config.set_memory_pool_limit(pool, workspace)
            if config.get_memory_pool_limit(pool) != workspace:
                raise self._error(f"a workspace of {workspace} bytes is not possible")
        self._set_target(options.target)

    def _set_target(self, target: str) -> None:
        config = self._config
        if not hasattr(config, "set_compute_capability"):
            if target != NATIVE:
                raise self._error(f"{self._library} builds for the GPU of its machine only, not for {target}")
            return
        capabilities = dict(self._trt.ComputeCapability.__members__)
        known = {NATIVE: capabilities.pop("CURRENT")}
        known |= {name.lower(): value for name, value in capabilities.items() if name != "NONE"}
        if target not in known:
            raise self._error(f"{self._library} knows no target {target!r}, only {', '.join(known)}")
        config.num_compute_capabilities = 1
        if not config.set_compute_capability(known[target], 0):
            raise self._error(f"{self._library} refuses the target {target}")

    def check(self, profile: Profile, limits: Mapping[str, tuple[int, int]]) -> None:
        for name, sizes in profile.items():
            least, most = limits.get(name, (0, -1))
            if not least <= sizes.min <= sizes.opt <= sizes.max <= most:
                allowed = f"takes {least} to {most}" if name in limits else "has no such dimension"
                raise self._error(f"a profile asks for {name} {sizes}, but the graph {allowed}")

    def add(self, profile: Profile) -> None:
        shapes = self._made(self._builder.create_optimization_profile(), "optimization profile")
        for index in range(self._network.num_inputs):
            tensor = self._network.get_input(index)
            sizes = [self._sizes(tensor, axis, profile) for axis in range(len(tensor.shape))]
            shapes.set_shape(
                tensor.name, [size.min for size in sizes], [size.opt for size in sizes], [size.max for size in sizes]
            )
        if self._config.add_optimization_profile(shapes) < 0:
            raise self._error(f"{self._library} refuses a profile")

    def _sizes(self, tensor: Any, axis: int, profile: Profile) -> SizeRange:
        size = tensor.shape[axis]
        if size >= 0:
            return SizeRange(size, size, size)
        dimension = tensor.get_dimension_name(axis) or ""
        match = DIMENSION.fullmatch(dimension)
        if match is None or match["name"] not in profile:
            raise self._error(f"no profile says how large dimension {axis} ({dimension!r}) of input {tensor.name} is")
        return profile[match["name"]].times(int(match["factor"] or 1))

    def serialized(self) -> bytes:
        plan = self._builder.build_serialized_network(self._network, self._config)
        if plan is None:
            raise self._error(f"{self._library} makes no plan of it")
        if any(IGNORED_INPUT.search(message.text) for message in self._messages):
            raise self._error("the plan would ignore an input of the graph")
        return bytes(plan)

    def _made(self, value: T | None, what: str) -> T:
        if value is None:
            raise self._error(f"{self._library} makes no {what}")
        return value

    def _error(self, reason: str) -> EngineBuildError:
        return EngineBuildError(str(self._graph), reason, [str(message) for message in self._messages])
