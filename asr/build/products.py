"""The products of a graph that can be quantised: those of an activation by a constant matrix.

Each has the name of the module that it was exported from, such as `blocks.0.attn.value`, and the last one of the
decoder, whose matrix is the transposed token embedding, is called `head`. Products of two activations (attention) never
become int8, nor does anything that is no product.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

HEAD = "head"
LEVELS = 127  # symmetric, so that zero is exact
SMALLEST_SCALE: dict[type[np.floating], float] = {np.float32: 1e-10, np.float16: 6e-8}  # above zero in their precision


@dataclass(frozen=True)
class Product:
    """node: a MatMul whose right operand is constant; weight: (inputs, outputs), in the graph's precision."""

    node: NodeProto
    weight: NDArray[np.floating]

    @property
    def name(self) -> str:
        return self.node.name


def products_of(model: ModelProto) -> dict[str, Product]:
    """Name → product, in the order of the graph."""
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    transposes = {
        node.output[0]: node.input[0]
        for node in model.graph.node
        if node.op_type == "Transpose" and node.input[0] in initializers
    }
    found = {}
    for node in model.graph.node:
        if node.op_type == "MatMul":
            right = node.input[1]
            tensor = initializers.get(transposes.get(right, right))  # a tied weight is the transpose of another
            if tensor is not None and len(tensor.dims) == 2:
                matrix = numpy_helper.to_array(tensor)
                found[node.name] = Product(node, matrix.T if right in transposes else matrix)
    return found


def symmetric_int8(
    weight: NDArray[np.floating], scale_dtype: type[np.floating]
) -> tuple[NDArray[np.int8], NDArray[np.floating]]:
    """(inputs, outputs) → the same in int8, and a scale for each output by which it is multiplied."""
    largest = np.abs(weight.astype(np.float32)).max(axis=0)
    scales = np.maximum(largest / LEVELS, SMALLEST_SCALE[scale_dtype]).astype(scale_dtype)
    quantized = np.clip(np.rint(weight.astype(np.float32) / scales.astype(np.float32)), -LEVELS, LEVELS)
    return np.ascontiguousarray(quantized, np.int8), scales


def rebuilt(
    model: ModelProto, nodes: list[NodeProto], initializers: Iterable[TensorProto], extra_domain: str | None = None
) -> ModelProto:
    """The model with these nodes, less what nothing uses any more. extra_domain: of operators that are not ONNX's."""
    needed = {output.name for output in model.graph.output}
    kept: list[NodeProto] = []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    used = [tensor for tensor in initializers if tensor.name in needed]
    graph = helper.make_graph(kept[::-1], model.graph.name, model.graph.input, model.graph.output, used)
    opsets = [*model.opset_import, *([helper.make_opsetid(extra_domain, 1)] if extra_domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)
