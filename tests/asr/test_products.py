"""Which products a graph has, what they are called, and what a matrix is in int8."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from torch import nn

from asr.build.artefacts import ensure_artefacts
from asr.build.products import HEAD, LEVELS, products_of, rebuilt, symmetric_int8
from asr.build.recipe import Recipe
from tests.asr.reference import LoadedModel

Matrix = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Exported:
    """A real graph, and the matrix of each product that it should have, (inputs, outputs) by the module's path."""

    model: ModelProto
    matrices: dict[str, Matrix]
    attention_products: int


@pytest.fixture(scope="module", params=["encoder", "decoder"])
def exported(request: pytest.FixtureRequest, tiny_en: LoadedModel, artefact_cache: Path) -> Exported:
    artefacts = ensure_artefacts(tiny_en.checkpoint, Recipe("fp32"), artefact_cache)
    module = {"encoder": tiny_en.encoder, "decoder": tiny_en.decoder}[request.param]
    matrices = {
        path: layer.weight.detach().numpy().T for path, layer in module.named_modules() if isinstance(layer, nn.Linear)
    }
    if request.param == "encoder":
        return Exported(onnx.load(artefacts.encoder), matrices, 2 * tiny_en.dims.n_audio_layer)
    matrices[HEAD] = tiny_en.decoder.token_embedding.weight.detach().numpy().T
    return Exported(onnx.load(artefacts.decoder), matrices, 6 * tiny_en.dims.n_text_layer)


# --- products of real graphs


def test_every_linear_layer_is_a_product_of_its_name(exported: Exported) -> None:
    products = products_of(exported.model)

    assert products.keys() == exported.matrices.keys()
    for name, matrix in exported.matrices.items():
        assert products[name].name == name
        assert np.array_equal(products[name].weight, matrix), name


def test_products_come_in_the_order_of_the_graph(exported: Exported) -> None:
    products = products_of(exported.model)

    assert list(products) == [node.name for node in exported.model.graph.node if node.name in products]
    assert [product.node for product in products.values()] == [
        node for node in exported.model.graph.node if node.name in products
    ]


def test_products_of_attention_are_none(exported: Exported) -> None:
    operators = Counter(node.op_type for node in exported.model.graph.node)

    assert operators["MatMul"] == len(exported.matrices) + exported.attention_products
    assert operators["Gemm"] == 0


# --- products of small graphs


def graph_of(nodes: Sequence[NodeProto], **weights: NDArray[Any]) -> ModelProto:
    """x → y"""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2, 3]) for name in "xy")
    initializers = [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "small", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_a_tied_matrix_is_a_product_too() -> None:
    """The same weight embeds tokens, and transposed is the vocabulary."""
    embedding = np.arange(12).reshape(4, 3)
    nodes = [
        helper.make_node("Transpose", ["embedding"], ["vocabulary"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "vocabulary"], ["y"], name=HEAD),
    ]
    [product] = products_of(graph_of(nodes, embedding=embedding)).values()

    assert product.name == HEAD
    assert product.weight.tolist() == embedding.T.tolist()


@pytest.mark.parametrize(
    "nodes",
    [
        [helper.make_node("MatMul", ["matrix", "x"], ["y"])],
        [helper.make_node("MatMul", ["x", "stack"], ["y"])],
        [helper.make_node("MatMul", ["x", "vector"], ["y"])],
        [helper.make_node("Mul", ["x", "matrix"], ["y"])],
        [helper.make_node("Transpose", ["x"], ["z"]), helper.make_node("MatMul", ["x", "z"], ["y"])],
    ],
    ids=["constant on the left", "matrices", "vector", "no product", "two activations"],
)
def test_what_is_no_product(nodes: list[NodeProto]) -> None:
    weights = {"matrix": np.ones((3, 3)), "stack": np.ones((2, 3, 3)), "vector": np.ones(3)}

    assert products_of(graph_of(nodes, **weights)) == {}


# --- int8


def test_each_column_has_its_own_scale() -> None:
    """Exact where the largest value of a column is a multiple of 127; halves are rounded to even."""
    weight = np.array([[127, -254, 1.27], [0.5, 3, -0.635], [1.5, -254, 0], [-127, 2, 0.02]], np.float32)
    values, scales = symmetric_int8(weight, np.float32)

    assert values.dtype == np.int8
    assert scales.dtype == np.float32
    assert values.tolist() == [[127, -127, 127], [0, 2, -64], [2, -127, 0], [-127, 1, 2]]
    assert scales.tolist() == [1, 2, np.float32(1.27) / 127]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_columns_of_zeros_and_nearly_zeros(dtype: type[np.floating[Any]]) -> None:
    """Their scale is never 0, by which nothing could be divided."""
    smallest = float(np.finfo(dtype).smallest_subnormal)
    values, scales = symmetric_int8(np.array([[0, smallest, 1], [0, -smallest, -1]], dtype), dtype)

    assert scales.dtype == dtype
    assert (scales > 0).all()
    assert np.isfinite(1 / scales.astype(np.float32)).all()
    assert values[:, 0].tolist() == [0, 0]
    assert values[:, 2].tolist() == [127, -127]


def test_values_are_rounded_by_the_scale_as_it_is_stored() -> None:
    """0.1 / 127 is 0.000787402 in float32 and 0.000787258 in float16."""
    weight = np.array([[0.1], [0.05], [-0.0003]], np.float32)
    for dtype in (np.float32, np.float16):
        values, [scale] = symmetric_int8(weight, dtype)
        expected = np.rint(weight / np.float32(scale))

        assert scale == dtype(0.1 / 127)
        assert values.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_error_is_half_a_step_at_most(dtype: type[np.floating[Any]]) -> None:
    weight = np.random.default_rng(0).standard_normal((64, 32)).astype(dtype) * np.geomspace(1e-2, 1e2, 32).astype(
        dtype
    )
    values, scales = symmetric_int8(weight, dtype)
    error = np.abs(values * scales.astype(np.float64) - weight)

    assert (np.abs(values).max(axis=0) == LEVELS).all()
    assert (error <= 0.5 * scales.astype(np.float64) * (1 + LEVELS * np.finfo(dtype).eps)).all()


def test_a_transposed_matrix_becomes_contiguous() -> None:
    values, _ = symmetric_int8(np.ones((4, 3), np.float32).T, np.float32)

    assert values.flags["C_CONTIGUOUS"]


# --- what is left


def test_what_is_unused_is_left_out() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "used"], ["z"]),
        helper.make_node("MatMul", ["x", "unused"], ["nowhere"]),
        helper.make_node("Relu", ["nowhere"], ["nowhere either"]),
        helper.make_node("Relu", ["z"], ["y"]),
    ]
    model = graph_of(nodes, used=np.ones((3, 3)), unused=np.ones((3, 3)))
    result = rebuilt(model, nodes, model.graph.initializer)

    assert list(result.graph.node) == [nodes[0], nodes[3]]
    assert [tensor.name for tensor in result.graph.initializer] == ["used"]
    assert (result.graph.input, result.graph.output) == (model.graph.input, model.graph.output)
    assert (result.opset_import, result.ir_version) == (model.opset_import, model.ir_version)
    onnx.checker.check_model(result)


def test_operators_of_others_have_a_domain() -> None:
    model = graph_of([helper.make_node("Relu", ["x"], ["y"])])
    result = rebuilt(model, list(model.graph.node), [], "com.microsoft")

    assert {opset.domain: opset.version for opset in result.opset_import} == {"": 20, "com.microsoft": 1}
