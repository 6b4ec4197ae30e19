"""Session over an ONNX graph in OpenVINO, on the CPU.

It pays where the processor has units for bfloat16, in which everything is computed that is not in int8, and in which
keys and values stay from one run to the next. A product whose weights are in int8 rounds its activations to int8 while
it runs, each token by itself and by groups of channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.errors import ArtefactError, OutOfMemoryError, RecognitionError
from asr.openvino_library import OpenVinoLibrary, load_openvino

GROUP_SIZE = 128
"""Channels of a token that share a range where they meet weights in int8."""
POSITIONS_MULTIPLE = 20
"""Encoder positions that batches are best padded to: kernels are made for every shape that is met, and soon it has met
all 75. The window, 1500, has to be a multiple."""
KERNELS = 120
"""Kernels of each kind that are kept, each for a shape, and a third of a megabyte or so. Speech has ever new shapes: a
service with OpenVINO's 5,000 would grow for days, and is no faster."""
LOGITS, HIDDEN = "logits", "hidden"
"""What stays in float32: at 20, one step of bfloat16 is an eighth; and what an int8 product makes logits of."""


class OpenVinoSession:
    """Runs the graph at `path` with `threads` threads, which so many runs at a time share."""

    device = torch.device("cpu")

    def __init__(self, path: Path, threads: int, dtype: torch.dtype, runs: int = 1) -> None:
        """dtype: float32, or bfloat16, which becomes float32 where the processor has no units for it.

        Raises:
            ArtefactError: the file is missing, damaged or not a graph that OpenVINO accepts, or there is no OpenVINO.
        """
        library = load_openvino()
        self.dtype = dtype if library.has_bfloat16 else torch.float32
        self._tensor, self._bfloat16 = library.module.Tensor, library.module.Type.bf16
        try:
            model = library.core.read_model(path)
            self._input_names = {value.any_name for value in model.inputs}
            self._output_names = [value.any_name for value in model.outputs]
            head = _take_head(library, model) if self.dtype == torch.bfloat16 else None
            self._parts = [_Part(library, model, self.dtype, threads, runs)]
            if head is not None:
                self._parts.append(_Part(library, head, torch.float32, threads, runs))
        except RuntimeError as error:
            raise ArtefactError(str(path), f"cannot be loaded ({error})") from error

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if inputs.keys() != self._input_names:
            raise RecognitionError(f"the graph takes {sorted(self._input_names)}, not {sorted(inputs)}")
        try:
            values = {name: self._shared(value.contiguous()) for name, value in inputs.items()}
            for part in self._parts:
                values |= part.run(values)
        except MemoryError as error:
            raise OutOfMemoryError(str(error)) from error
        except RuntimeError as error:
            raise RecognitionError(str(error)) from error
        return {name: _as_torch(values[name]) for name in self._output_names}

    def _shared(self, value: Tensor) -> Any:
        """The same memory as OpenVINO sees it; NumPy, which is in between, has no bfloat16."""
        if value.dtype == torch.bfloat16:
            return self._tensor(value.view(torch.int16).numpy(), value.shape, self._bfloat16)
        return self._tensor(value.numpy(), shared_memory=True)


class _Part:
    """A compiled model, whose float32 inputs and outputs have become `dtype`."""

    def __init__(self, library: OpenVinoLibrary, model: Any, dtype: torch.dtype, threads: int, runs: int) -> None:
        types = library.module.Type
        element_type = types.bf16 if dtype == torch.bfloat16 else types.f32
        names = {name for value in model.outputs for name in value.names}
        typed = library.module.preprocess.PrePostProcessor(model)
        for place, value in enumerate(model.inputs):
            if value.element_type == types.f32:
                typed.input(place).tensor().set_element_type(element_type)
        for place, value in enumerate(model.outputs):
            if value.element_type == types.f32 and not value.names & {LOGITS, HIDDEN}:
                typed.output(place).tensor().set_element_type(element_type)
        properties = {
            "INFERENCE_PRECISION_HINT": element_type,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP_SIZE,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": runs,
            "INFERENCE_NUM_THREADS": threads,
            "CPU_RUNTIME_CACHE_CAPACITY": KERNELS,
            "ENABLE_CPU_PINNING": False,  # others need the cores too
        }
        if not names.isdisjoint({LOGITS, HIDDEN}):
            properties["SNIPPETS_MODE"] = "DISABLE"  # attention as one operation suits many queries, not one of a token
        self._compiled = library.core.compile_model(typed.build(), "CPU", properties)
        self._inputs = [value.any_name for value in self._compiled.inputs]
        self._outputs = [value.any_name for value in self._compiled.outputs]

    def run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Name → tensor of OpenVINO's, both ways."""
        request = self._compiled.create_infer_request()  # a new one has outputs of its own
        for place, name in enumerate(self._inputs):
            request.set_input_tensor(place, values[name])
        request.infer()
        return {name: request.get_output_tensor(place) for place, name in enumerate(self._outputs)}


def _take_head(library: OpenVinoLibrary, model: Any) -> Any | None:
    """Take the product that makes logits out of the model, if its weights are in int8; → it as a model of its own.

    Together with the rest OpenVINO would round what it makes to bfloat16, which it does not of other weights.
    """
    module = library.module
    for result in model.get_results():
        product = result.input_value(0).get_node()
        is_dequantized = (
            product.get_input_size() == 2 and product.input_value(1).get_node().get_type_name() == "Multiply"
        )
        if LOGITS in result.output(0).names and is_dequantized:
            hidden = product.input_value(0)
            hidden.add_names({HIDDEN})
            parameter = module.opset1.parameter(hidden.partial_shape, module.Type.f32)
            parameter.output(0).set_names({HIDDEN})
            model.remove_result(result)
            model.add_results([module.opset1.result(hidden)])
            product.input(0).replace_source_output(parameter.output(0))
            return module.Model([result], [parameter])
    return None


def _as_torch(value: Any) -> Tensor:
    """The same memory, which lives as long as the result."""
    if value.element_type.get_type_name() == "bf16":
        return torch.from_numpy(value.data.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(value.data)
