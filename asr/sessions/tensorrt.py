"""Session over a TensorRT plan, on a CUDA device.

A plan has one or more optimization profiles, ranges of input shapes that it has kernels for. Each has an execution
context, which remembers shapes and addresses. The contexts share one arena for intermediate results, reserved at the
start, so only one of them may run at a time: what runs is ordered by the streams it runs on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from asr.errors import ArtefactError, AsrError, OutOfMemoryError, RecognitionError
from asr.tensorrt_library import TensorRTLibrary, load_tensorrt

DTYPES = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "INT64": torch.int64,
    "INT32": torch.int32,
    "INT8": torch.int8,
    "UINT8": torch.uint8,
    "BOOL": torch.bool,
}
"""TensorRT's name → PyTorch's type."""
OUT_OF_MEMORY = re.compile(r"out ?of ?memory|memoryallocation|insufficient memory|failed to allocate", re.IGNORECASE)


class RefusedError(RuntimeError):
    """What cannot go on; mostly, TensorRT answered with None or False."""


class Streams(Protocol):
    """The CUDA streams, by their handles, that a session runs on."""

    def current(self) -> int:
        """The stream that the calling thread enqueues on at the moment."""
        ...

    def own(self) -> AbstractContextManager[int]:
        """A stream of the session's own, which waits for the current one; when the block is left, it has finished."""
        ...


class CudaStreams:
    """The real ones."""

    def __init__(self, device: torch.device) -> None:
        _require(torch.cuda.is_available(), "there is no CUDA device")
        self._device = device
        self._own = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def current(self) -> int:
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    @contextmanager
    def own(self) -> Iterator[int]:
        with torch.cuda.device(self._device):
            self._own.wait_stream(torch.cuda.current_stream())
            try:
                yield int(self._own.cuda_stream)
            finally:  # also after a failure, since what was enqueued still uses its tensors
                self._own.synchronize()


class TensorRTSession:
    """Runs the plan at `path` on `device`, with the library that it was built with."""

    def __init__(
        self, path: Path, device: torch.device, library: TensorRTLibrary | None = None, streams: Streams | None = None
    ) -> None:
        """
        Raises:
            ArtefactError: there is no TensorRT, or the file is missing, damaged, or not for this GPU and library.
            OutOfMemoryError: the device has no room for the weights or the arena.
        """
        self._path = path
        self._library = library or load_tensorrt()
        with self._typed_errors(self._artefact_error):
            self._streams = streams or CudaStreams(device)
            with self._streams.own() as stream:
                self._engine = self._deserialize()
                self._inputs, self._outputs = self._tensors()
                self.dtype = self._float_dtype()
                profiles = range(self._engine.num_optimization_profiles)
                self._ranges = [self._ranges_of(profile) for profile in profiles]
                needed = max(map(self._engine.get_device_memory_size_for_profile_v2, profiles))
                self._arena = torch.empty(needed, dtype=torch.uint8, device=device)
                self._contexts = [self._new_context(profile, stream) for profile in profiles]
        self.device = self._arena.device  # with its index, as tensors have it

    @property
    def activation_bytes(self) -> int:
        """Device memory reserved for intermediate results: what the largest batch needs beside inputs and outputs."""
        return self._arena.numel()

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self._check(inputs)
        context = self._contexts[self._profile_for(inputs)]
        with self._typed_errors(self._recognition_error), self._streams.own() as stream:
            return self._enqueue(context, inputs, stream)

    def enqueue(self, inputs: Mapping[str, Tensor], context: Any = None) -> dict[str, Tensor]:
        """Like run, but on the current stream and without waiting: outputs are there for what follows on that stream.

        It can be captured in a CUDA graph, with a context of its own that has run once before. Nothing else of this
        session, graphs included, may run on another stream at the same time.

        Raises:
            RecognitionError: as from run, for what fails before the kernels run.
        """
        self._check(inputs)
        if context is None:
            context = self._contexts[self._profile_for(inputs)]
        with self._typed_errors(self._recognition_error):
            return self._enqueue(context, inputs, self._streams.current())

    def create_context(self, inputs: Mapping[str, Tensor]) -> Any:
        """A further execution context for inputs of these shapes: a captured graph keeps what its context remembers.

        Raises:
            RecognitionError: no profile has these shapes, or TensorRT makes no context.
        """
        self._check(inputs)
        profile = self._profile_for(inputs)
        with self._typed_errors(self._recognition_error), self._streams.own() as stream:
            return self._new_context(profile, stream)

    def _deserialize(self) -> Any:
        try:
            self._runtime = self._library.module.Runtime(self._library.logger)  # must outlive the engine
        except TypeError as error:  # what pybind11 makes of a null pointer
            raise RefusedError(f"{self._library} cannot run here") from error
        try:
            plan = self._path.read_bytes()
        except OSError as error:
            raise RefusedError(f"cannot be read ({error})") from error
        engine = self._runtime.deserialize_cuda_engine(plan)
        _require(engine is not None, f"is not a plan that {self._library} can run on this GPU")
        return engine

    def _tensors(self) -> tuple[dict[str, torch.dtype], dict[str, torch.dtype]]:
        """Names and types of the inputs, and of the outputs."""
        trt, engine = self._library.module, self._engine
        inputs: dict[str, torch.dtype] = {}
        outputs: dict[str, torch.dtype] = {}
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            type_name = engine.get_tensor_dtype(name).name
            _require(type_name in DTYPES, f"tensor {name} is {type_name}, which PyTorch lacks")
            _require(engine.get_tensor_location(name) == trt.TensorLocation.DEVICE, f"tensor {name} is for the host")
            is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
            (inputs if is_input else outputs)[name] = DTYPES[type_name]
        return inputs, outputs

    def _float_dtype(self) -> torch.dtype:
        found = {dtype for dtype in (*self._inputs.values(), *self._outputs.values()) if dtype.is_floating_point}
        _require(len(found) == 1, f"inputs and outputs have not one floating-point type but {len(found)}")
        return found.pop()

    def _ranges_of(self, profile: int) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Least and largest shape of every input."""
        ranges = {}
        for name in self._inputs:
            least, _, most = self._engine.get_tensor_profile_shape(name, profile)
            ranges[name] = tuple(least), tuple(most)
        return ranges

    def _new_context(self, profile: int, stream: int) -> Any:
        strategy = self._library.module.ExecutionContextAllocationStrategy.USER_MANAGED
        context = self._engine.create_execution_context(strategy)
        _require(context is not None, "TensorRT makes no execution context")
        context.set_device_memory(self._arena.data_ptr(), self._arena.numel())
        _require(context.set_optimization_profile_async(profile, stream), f"TensorRT refuses profile {profile}")
        return context

    def _check(self, inputs: Mapping[str, Tensor]) -> None:
        if inputs.keys() != self._inputs.keys():
            raise self._recognition_error(f"inputs {sorted(inputs)} instead of {sorted(self._inputs)}")
        for name, dtype in self._inputs.items():
            value = inputs[name]
            if (value.dtype, value.device) != (dtype, self.device) or not value.is_contiguous():
                layout = "" if value.is_contiguous() else "not contiguous, "
                raise self._recognition_error(
                    f"input {name} is {layout}{value.dtype} on {value.device}, not {dtype} on {self.device}"
                )

    def _profile_for(self, inputs: Mapping[str, Tensor]) -> int:
        misfits = []
        for profile, ranges in enumerate(self._ranges):
            misfit = next((name for name in ranges if not _holds(*ranges[name], tuple(inputs[name].shape))), None)
            if misfit is None:
                return profile
            least, most = ranges[misfit]
            misfits.append(f"input {misfit} is {tuple(inputs[misfit].shape)}, profile {profile} has {least} to {most}")
        raise self._recognition_error("; ".join(misfits))

    def _enqueue(self, context: Any, inputs: Mapping[str, Tensor], stream: int) -> dict[str, Tensor]:
        for name, value in inputs.items():
            shape = tuple(value.shape)
            _require(context.set_input_shape(name, shape), f"TensorRT refuses shape {shape} of input {name}")
            _require(context.set_tensor_address(name, value.data_ptr()), f"TensorRT refuses the address of {name}")
        outputs = {}
        for name, dtype in self._outputs.items():
            shape = tuple(context.get_tensor_shape(name))
            _require(min(shape, default=0) >= 0, f"TensorRT knows no shape of output {name}, only {shape}")
            # Of the current stream's memory, also where another stream runs: that is where outputs are used and freed.
            outputs[name] = torch.empty(shape, dtype=dtype, device=self.device)
            address = outputs[name].data_ptr()
            _require(context.set_tensor_address(name, address), f"TensorRT refuses the address of {name}")
        _require(context.execute_async_v3(stream), "TensorRT does not execute")
        return outputs

    @contextmanager
    def _typed_errors(self, error_of: Callable[[str], AsrError]) -> Iterator[None]:
        """Turn what TensorRT and CUDA refuse into OutOfMemoryError where that is why, else into the error given."""
        with self._library.messages.collect() as messages:
            try:
                yield
            except RuntimeError as error:  # PyTorch's errors of CUDA are of this class, too
                reason = "\n  ".join((str(error), *map(str, messages)))
                if isinstance(error, torch.OutOfMemoryError) or OUT_OF_MEMORY.search(reason):
                    raise OutOfMemoryError(f"{self._path}: {reason}") from error
                raise error_of(reason) from error

    def _artefact_error(self, reason: str) -> AsrError:
        return ArtefactError(str(self._path), reason)

    def _recognition_error(self, reason: str) -> AsrError:
        return RecognitionError(f"{self._path}: {reason}")


def _require(condition: object, reason: str) -> None:
    if not condition:
        raise RefusedError(reason)


def _holds(least: tuple[int, ...], most: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(shape) == len(least) and all(a <= size <= b for a, size, b in zip(least, shape, most, strict=True))
