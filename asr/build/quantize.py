"""int8 matrix products for ONNX Runtime's CPU, with activations quantised token by token.

Weights are int8 with one scale for each output channel. Activations are quantised while running, each token (the last
axis of the left operand) by its own range. ONNX Runtime's own dynamic quantisation takes one range for the whole tensor
instead: it is less exact, and an utterance's result would depend on which others share its batch.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from asr.build.export import module_of

FLOAT_MODULES = r"blocks\.\d+\.attn\.value"
"""Values of self-attention stay in float32: of all projections their error costs most, several times that of the keys,
and they are a small part of the work."""
CONTRIB_DOMAIN = "com.microsoft"  # MatMulIntegerToFloat: u8 x s8 or u8 → f32 with a scale for each column
LEVELS = 127  # symmetric, so that zero is exact
ZERO_POINT = 128  # of values stored as uint8
SMALLEST_SCALE = 1e-10  # keeps a token of zeros from dividing by zero
CONSTANTS: dict[str, NDArray[np.generic]] = {
    "quantize.last_axis": np.array([-1], np.int64),
    "quantize.one": np.array(1, np.float32),
    "quantize.levels": np.array(LEVELS, np.float32),
    "quantize.smallest_scale": np.array(SMALLEST_SCALE, np.float32),
    "quantize.zero_point": np.array(ZERO_POINT, np.uint8),
    "quantize.rounding": np.array(ZERO_POINT + 0.5, np.float32),  # the cast to uint8 truncates
}


def has_exact_u8s8() -> bool:
    """Whether this processor multiplies u8 by s8 without overflow: x86 needs VNNI for it, others always do."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.is_file() and bool({"avx512_vnni", "avx_vnni"} & set(cpuinfo.read_text().split()))


def quantize_matmuls(model: ModelProto, *, signed_weights: bool) -> ModelProto:
    """The same graph with products by constant matrices in int8, except those of FLOAT_MODULES; products of two
    activations stay as they are.

    signed_weights: s8, twice as fast where `has_exact_u8s8`; otherwise u8 with zero point 128, exact everywhere.
    """
    graph = model.graph
    weights = _ConstantMatrices(graph.node, graph.initializer)
    nodes: list[NodeProto] = []
    initializers = [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()]
    quantized: dict[str, _Quantized] = {}  # activations that several products share are quantised once
    for node in graph.node:
        quantizable = node.op_type == "MatMul" and not re.fullmatch(FLOAT_MODULES, module_of(node))
        weight = weights.get(node.input[1]) if quantizable else None
        if weight is None:
            nodes.append(node)
            continue
        activation = node.input[0]
        if activation not in quantized:
            quantized[activation] = _quantize_tokens(activation)
            nodes += quantized[activation].nodes
        product_nodes, product_initializers = _product(
            node.output[0], quantized[activation], weight, signed=signed_weights
        )
        nodes += product_nodes
        initializers += product_initializers
    return _rebuilt(model, nodes, [*graph.initializer, *initializers])


class _ConstantMatrices:
    """Finds the matrix behind the name of a right operand: an initializer, or the transpose of one (a tied weight)."""

    def __init__(self, nodes: Iterable[NodeProto], initializers: Iterable[TensorProto]) -> None:
        self._initializers = {tensor.name: tensor for tensor in initializers}
        self._transposes = {
            node.output[0]: node
            for node in nodes
            if node.op_type == "Transpose" and node.input[0] in self._initializers
        }

    def get(self, name: str) -> NDArray[np.float32] | None:
        """(inputs, outputs) float32, or None if the name stands for no constant matrix."""
        transpose = self._transposes.get(name)
        tensor = self._initializers.get(transpose.input[0] if transpose is not None else name)
        if tensor is None or len(tensor.dims) != 2:
            return None
        matrix = numpy_helper.to_array(tensor)
        return matrix.T if transpose is not None else matrix


@dataclass(frozen=True)
class _Quantized:
    """nodes: that make values, in uint8, and scales, (…, tokens, 1) in float32."""

    nodes: list[NodeProto]
    values: str
    scales: str


def _quantize_tokens(activation: str) -> _Quantized:
    """activation: (…, tokens, channels) float32."""
    parts = ("magnitude", "largest", "scale", "scales", "divided", "shifted", "values")
    magnitude, largest, scale, scales, divided, shifted, values = (f"{activation}.int8.{part}" for part in parts)
    nodes = [
        helper.make_node("Abs", [activation], [magnitude]),
        helper.make_node("ReduceMax", [magnitude, "quantize.last_axis"], [largest], keepdims=1),
        helper.make_node("Div", [largest, "quantize.levels"], [scale]),
        helper.make_node("Max", [scale, "quantize.smallest_scale"], [scales]),
        helper.make_node("Div", [activation, scales], [divided]),
        helper.make_node("Add", [divided, "quantize.rounding"], [shifted]),
        helper.make_node("Cast", [shifted], [values], to=TensorProto.UINT8),
    ]
    return _Quantized(nodes, values, scales)


def _product(
    output: str, activation: _Quantized, weight: NDArray[np.float32], *, signed: bool
) -> tuple[list[NodeProto], list[TensorProto]]:
    """Nodes and initializers for activation @ weight, where weight is (inputs, outputs) float32."""
    scales = np.maximum(np.abs(weight).max(axis=0) / LEVELS, SMALLEST_SCALE).astype(np.float32)
    dtype, zero_point = (np.int8, 0) if signed else (np.uint8, ZERO_POINT)
    arrays = {
        f"{output}.weight": np.ascontiguousarray(np.rint(weight / scales) + zero_point).astype(dtype),
        f"{output}.weight_scales": scales,
        f"{output}.weight_zero_points": np.full(weight.shape[1], zero_point, dtype),
    }
    names, unscaled = list(arrays), f"{output}.unscaled"
    inputs = [activation.values, names[0], "quantize.one", names[1], "quantize.zero_point", names[2]]
    nodes = [
        helper.make_node("MatMulIntegerToFloat", inputs, [unscaled], domain=CONTRIB_DOMAIN),
        helper.make_node("Mul", [unscaled, activation.scales], [output]),
    ]
    return nodes, [numpy_helper.from_array(array, name) for name, array in arrays.items()]


def _rebuilt(model: ModelProto, nodes: list[NodeProto], initializers: list[TensorProto]) -> ModelProto:
    """The model with these nodes, less what nothing uses any more."""
    needed = {output.name for output in model.graph.output}
    kept: list[NodeProto] = []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    used = [tensor for tensor in initializers if tensor.name in needed]
    graph = helper.make_graph(kept[::-1], model.graph.name, model.graph.input, model.graph.output, used)
    contrib = helper.make_opsetid(CONTRIB_DOMAIN, 1)
    return helper.make_model(graph, opset_imports=[*model.opset_import, contrib], ir_version=model.ir_version)
