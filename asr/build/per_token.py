"""int8 matrix products for ONNX Runtime's CPU, with activations quantised token by token.

Weights are int8 with one scale for each output channel. Activations are quantised while running, each token (the last
axis of the left operand) by its own range. ONNX Runtime's own dynamic quantisation takes one range for the whole tensor
instead: it is less exact, and an utterance's result would depend on which others share its batch.
"""

from __future__ import annotations

import platform
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from asr.build.products import LEVELS, products_of, rebuilt, symmetric_int8

CONTRIB_DOMAIN = "com.microsoft"  # MatMulIntegerToFloat: u8 x s8 or u8 → f32 with a scale for each column
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


def quantize_per_token(model: ModelProto, names: Collection[str], *, signed_weights: bool) -> ModelProto:
    """The same float32 graph with these products in int8.

    signed_weights: s8, twice as fast where `has_exact_u8s8`; otherwise u8 with zero point 128, exact everywhere.
    """
    products = {name: product for name, product in products_of(model).items() if name in names}
    nodes: list[NodeProto] = []
    initializers = [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()]
    quantized: dict[str, _Quantized] = {}  # activations that several products share are quantised once
    for node in model.graph.node:
        product = products.get(node.name)
        if product is None:
            nodes.append(node)
            continue
        activation = node.input[0]
        if activation not in quantized:
            quantized[activation] = _quantize_tokens(activation)
            nodes += quantized[activation].nodes
        product_nodes, product_initializers = _product(
            node.output[0], quantized[activation], product.weight, signed=signed_weights
        )
        nodes += product_nodes
        initializers += product_initializers
    return rebuilt(model, nodes, [*model.graph.initializer, *initializers], CONTRIB_DOMAIN)


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
    output: str, activation: _Quantized, weight: NDArray[np.floating], *, signed: bool
) -> tuple[list[NodeProto], list[TensorProto]]:
    """Nodes and initializers for activation @ weight, where weight is (inputs, outputs) float32."""
    values, scales = symmetric_int8(weight, np.float32)
    dtype, zero_point = (np.int8, 0) if signed else (np.uint8, ZERO_POINT)
    arrays = {
        f"{output}.weight": (values.astype(np.int16) + zero_point).astype(dtype),
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
