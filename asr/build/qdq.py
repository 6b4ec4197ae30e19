"""Explicit quantisation: QuantizeLinear and DequantizeLinear around int8 products, as TensorRT reads it.

The same placement and ranges give two variants, by the precision of the graph that they are put into: float32 scales
for ONNX Runtime's CPU, float16 scales for TensorRT. Weights have a scale for each output, activations one for the
tensor; everything is symmetric.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from asr.build.products import LEVELS, SMALLEST_SCALE, Product, products_of, rebuilt, symmetric_int8


def insert_qdq(model: ModelProto, ranges: Mapping[str, float | None]) -> ModelProto:
    """The same graph with the products named in `ranges` in int8.

    ranges: name of a product → largest magnitude of its activation that is told apart; None quantises only its weight.
    """
    products = products_of(model)
    nodes: list[NodeProto] = []
    initializers: list[TensorProto] = []
    quantized: set[str] = set()
    for node in model.graph.node:
        if node.name not in ranges:
            nodes.append(node)
            continue
        product, largest = products[node.name], ranges[node.name]
        left = node.input[0]
        if largest is not None:
            if left not in quantized:  # products that share an activation share its range
                quantized.add(left)
                nodes.append(_linear("QuantizeLinear", left, left, f"{left}.int8"))
                initializers += _scale(left, largest, product)
            nodes.append(_linear("DequantizeLinear", f"{left}.int8", left, f"{node.name}.activation"))
            left = f"{node.name}.activation"
        weight = f"{node.name}.weight"
        values, scales = symmetric_int8(product.weight, product.weight.dtype.type)
        initializers += [numpy_helper.from_array(values, f"{weight}.int8"), *_parameters(weight, scales)]
        nodes.append(_linear("DequantizeLinear", f"{weight}.int8", weight, weight, axis=1))
        nodes.append(helper.make_node("MatMul", [left, weight], node.output, name=node.name))
    return rebuilt(model, nodes, [*model.graph.initializer, *initializers])


def _linear(op_type: str, value: str, parameters: str, output: str, **attributes: Any) -> NodeProto:
    inputs = [value, f"{parameters}.scale", f"{parameters}.zero_point"]
    return helper.make_node(op_type, inputs, [output], name=f"{output}.{op_type}", **attributes)


def _scale(activation: str, largest: float, product: Product) -> list[TensorProto]:
    dtype = product.weight.dtype.type
    scale = np.array(max(largest / LEVELS, SMALLEST_SCALE[dtype]), dtype)
    return _parameters(activation, scale)


def _parameters(name: str, scales: NDArray[np.floating]) -> list[TensorProto]:
    zero_points = np.zeros(scales.shape, np.int8)
    return [
        numpy_helper.from_array(scales, f"{name}.scale"),
        numpy_helper.from_array(zero_points, f"{name}.zero_point"),
    ]
