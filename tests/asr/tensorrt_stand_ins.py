"""TensorRT's run time where there is no GPU: objects that compute with PyTorch, on the CPU, as strict as the real ones.

A stand-in is only reached through `Checked`, which knows the real class: it has no attribute that the real one lacks,
and accepts and returns only what the signatures in the real docstrings say.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from asr.build.plan import Profile
from asr.model import (
    Dims,
    decoder_input_names,
    decoder_output_names,
    encoder_input_names,
    encoder_output_names,
)
from asr.session import Session
from asr.tensorrt_library import TensorRTLibrary

Shape: TypeAlias = tuple[int | str, ...]
"""Sizes, or the names of dimensions."""

PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "None": (type(None),),
    "bool": (bool,),
    "int": (int,),
    "list": (list,),
    "str": (str,),
    "tuple": (tuple,),
    "typing.SupportsInt": (int,),
    "typing_extensions.Buffer": (bytes,),
}
SIGNATURE = re.compile(r"^(?:\d+\. )?(\w+)\(self: [\w.]+(?:, (.*))?\) -> (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Graph:
    """name → type and shape of inputs and of outputs; session: what computes them; profiles: of the plan."""

    inputs: Mapping[str, tuple[torch.dtype, Shape]]
    outputs: Mapping[str, tuple[torch.dtype, Shape]]
    session: Session
    profiles: Sequence[Profile]


def encoder_graph(dims: Dims, session: Session, profiles: Sequence[Profile]) -> Graph:
    batch_positions: Shape = ("batch", "positions")
    shapes: list[tuple[torch.dtype, Shape]] = [
        (torch.float32, ("batch", dims.n_mels, "2*positions")),
        (torch.int64, ("batch",)),
        (torch.int64, batch_positions),
        (torch.float32, batch_positions),
    ]
    inputs = dict(zip(encoder_input_names(), shapes, strict=True))
    return Graph(inputs, _cross(dims), session, profiles)


def decoder_graph(dims: Dims, session: Session, profiles: Sequence[Profile]) -> Graph:
    heads = dims.n_text_head
    cache: Shape = ("batch", heads, "capacity", dims.head_dim)
    shapes: dict[str, tuple[torch.dtype, Shape]] = {
        "tokens": (torch.int64, ("batch", "steps")),
        "past_lengths": (torch.int64, ("batch",)),
        "logit_positions": (torch.int64, ("batch", "wanted")),
        "cross_bias": (torch.float32, ("batch", "positions")),
        **_cross(dims),
    }
    inputs = {name: shapes.get(name, (torch.float32, cache)) for name in decoder_input_names(dims)}
    new_kv: Shape = (dims.n_text_layer, 2, "batch", heads, "steps", dims.head_dim)
    logits: Shape = ("batch", "wanted", dims.n_vocab)
    outputs = dict(zip(decoder_output_names(), ((torch.float32, logits), (torch.float32, new_kv)), strict=True))
    return Graph(inputs, outputs, session, profiles)


def _cross(dims: Dims) -> dict[str, tuple[torch.dtype, Shape]]:
    key: Shape = ("batch", dims.n_text_head, dims.head_dim, "positions")
    value: Shape = ("batch", dims.n_text_head, "positions", dims.head_dim)
    return {name: (torch.float32, key if "key" in name else value) for name in encoder_output_names(dims)}


@dataclass
class Machine:
    """What all stand-ins of a test share: what goes wrong in it, and what happened.

    answers: name of a method → what it returns instead of doing anything; says: what the logger hears then.
    """

    library: TensorRTLibrary
    graph: Graph
    answers: dict[str, object] = field(default_factory=dict)
    says: str = ""
    arenas: list[tuple[int, int]] = field(default_factory=list)
    profiles_run: list[int] = field(default_factory=list)
    streams_run: list[int] = field(default_factory=list)
    arena_bytes: int = 4096  # times the number of the profile, from one

    @property
    def session_library(self) -> TensorRTLibrary:
        """What the session under test gets."""
        return replace(self.library, module=Module(self))

    def warn(self) -> None:
        self.library.logger.log(self.library.module.ILogger.Severity.ERROR, self.says)


class Module:
    """The bindings: enumerations are real, Runtime is not."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine.library.module, name)

    def Runtime(self, logger: Any) -> Any:  # noqa: N802  # TensorRT's name
        module = self._machine.library.module
        assert isinstance(logger, module.ILogger)
        if "Runtime" in self._machine.answers:
            self._machine.warn()
            raise TypeError("pybind11::init(): factory function returned nullptr")
        return Checked(module.Runtime, RuntimeStandIn(self._machine), self._machine)


class Checked:
    """A stand-in, held to what its real class has and to the signatures in the real docstrings."""

    def __init__(self, real: Any, stand_in: object, machine: Machine) -> None:
        self.__dict__.update(_real=real, _stand_in=stand_in, _machine=machine)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if isinstance(real, property):
            return getattr(self._stand_in, name)
        return lambda *arguments: self._call(name, real.__doc__, arguments)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self._real.__name__}.{name} is not for setting")

    def _call(self, name: str, doc: str, arguments: tuple[Any, ...]) -> Any:
        overloads = [(parameters, result) for method, parameters, result in SIGNATURE.findall(doc) if method == name]
        results = [result for parameters, result in overloads if self._accepts(parameters, arguments)]
        assert results, f"{self._real.__name__}.{name}{arguments} is none of {overloads}"
        if name in self._machine.answers:
            self._machine.warn()
            answer = self._machine.answers[name]
            assert answer is None or self._is_a(answer, results[0]), f"{name} never returns {answer!r}"
            return answer
        answer = getattr(self._stand_in, name)(*arguments)
        assert self._is_a(answer, results[0]), f"{name} returns {answer!r}, not {results[0]}"
        return answer

    def _accepts(self, parameters: str, arguments: tuple[Any, ...]) -> bool:
        known = [parameter.split(": ", 1)[1] for parameter in parameters.split(", ")] if parameters else []
        required = [parameter for parameter in known if " = " not in parameter]
        types = [parameter.split(" = ")[0] for parameter in known]
        return len(required) <= len(arguments) <= len(known) and all(map(self._is_a, arguments, types))

    def _is_a(self, value: object, type_name: str) -> bool:
        if type_name.startswith("list["):
            return isinstance(value, list) and all(self._is_a(element, type_name[5:-1]) for element in value)
        if type_name in PYTHON_TYPES:
            return isinstance(value, PYTHON_TYPES[type_name]) and (type_name == "bool") == isinstance(value, bool)
        real = getattr(self._machine.library.module, type_name.rpartition(".")[2])
        return isinstance(value, real) or (isinstance(value, Checked) and value._real is real)


class RuntimeStandIn:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def deserialize_cuda_engine(self, plan: bytes) -> Checked:
        return Checked(self._machine.library.module.ICudaEngine, EngineStandIn(self._machine), self._machine)


class EngineStandIn:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._trt = machine.library.module
        self._graph = machine.graph
        self._tensors = {**machine.graph.inputs, **machine.graph.outputs}
        self.num_io_tensors = len(self._tensors)
        self.num_optimization_profiles = len(machine.graph.profiles)

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_mode(self, name: str) -> Any:
        return self._trt.TensorIOMode.INPUT if name in self._graph.inputs else self._trt.TensorIOMode.OUTPUT

    def get_tensor_location(self, name: str) -> Any:
        return self._trt.TensorLocation.DEVICE

    def get_tensor_dtype(self, name: str) -> Any:
        names = {torch.float32: "FLOAT", torch.float16: "HALF", torch.int64: "INT64", torch.float8_e5m2: "FP8"}
        return getattr(self._trt.DataType, names[self._tensors[name][0]])

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[Any]:
        sizes = self._graph.profiles[profile]
        shape = self._graph.inputs[name][1]
        return [
            self._trt.Dims(sized(shape, {dimension: getattr(sizes[dimension], bound) for dimension in sizes}))
            for bound in ("min", "opt", "max")
        ]

    def get_device_memory_size_for_profile_v2(self, profile: int) -> int:
        return self._machine.arena_bytes * (profile + 1)

    def create_execution_context(self, strategy: Any) -> Checked:
        assert strategy == self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        return Checked(self._trt.IExecutionContext, ContextStandIn(self._machine, self), self._machine)


class ContextStandIn:
    def __init__(self, machine: Machine, engine: EngineStandIn) -> None:
        self._machine = machine
        self._engine = engine
        self._trt = machine.library.module
        self._graph = machine.graph
        self._profile: int | None = None
        self._arena_bytes = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def set_device_memory(self, memory: int, size: int) -> None:
        self._arena_bytes = size
        self._machine.arenas.append((memory, size))

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        self._profile = profile
        return self._arena_bytes >= self._engine.get_device_memory_size_for_profile_v2(profile)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        if self._profile is None:
            return False
        least, _, most = self._engine.get_tensor_profile_shape(name, self._profile)
        self._shapes[name] = shape
        return all(a <= size <= b for a, size, b in zip(least, shape, most, strict=True))

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        return address != 0

    def get_tensor_shape(self, name: str) -> Any:
        shapes = {key: shape for key, (_, shape) in self._graph.inputs.items()}
        sizes = {
            dimension: size
            for key, actual in self._shapes.items()
            for dimension, size in zip(shapes[key], actual, strict=True)
            if isinstance(dimension, str)
        }
        return self._trt.Dims(sized(self._graph.outputs[name][1], sizes))

    def execute_async_v3(self, stream: int) -> bool:
        if self._profile is None or self._addresses.keys() != {*self._graph.inputs, *self._graph.outputs}:
            return False
        self._machine.profiles_run.append(self._profile)
        self._machine.streams_run.append(stream)
        inputs = {
            name: memory_at(self._addresses[name], dtype, self._shapes[name])
            for name, (dtype, _) in self._graph.inputs.items()
        }
        for name, value in self._graph.session.run(inputs).items():
            dtype, _ = self._graph.outputs[name]
            memory_at(self._addresses[name], dtype, tuple(self.get_tensor_shape(name))).copy_(value)
        return True


def memory_at(address: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The tensor that lies there."""
    content = (ctypes.c_char * (math.prod(shape) * dtype.itemsize)).from_address(address)
    return torch.frombuffer(content, dtype=dtype).view(shape)


def sized(shape: Shape, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape with sizes in the place of names; -1 where one is not known."""

    def size_of(dimension: int | str) -> int:
        if isinstance(dimension, int):
            return dimension
        factor, _, name = dimension.rpartition("*")
        return int(factor or 1) * sizes[name] if name in sizes else -1

    return tuple(map(size_of, shape))


class ProgramOrder:
    """The streams of a CPU, which runs everything at once: numbers that tell them apart."""

    CURRENT, OWN = 7, 8

    def __init__(self) -> None:
        self.finished = 0

    def current(self) -> int:
        return self.CURRENT

    @contextmanager
    def own(self) -> Iterator[int]:
        try:
            yield self.OWN
        finally:
            self.finished += 1
