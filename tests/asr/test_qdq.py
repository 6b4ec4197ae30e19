"""Explicit quantisation: where Q and DQ are put, in which precision, and what they compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from asr.build.artefacts import ensure_artefacts
from asr.build.products import HEAD, SMALLEST_SCALE, products_of, symmetric_int8
from asr.build.qdq import insert_qdq
from asr.build.recipe import Recipe
from asr.sessions.onnxruntime import OnnxSession
from tests.asr.reference import LoadedModel

Array: TypeAlias = NDArray[Any]
Ranges: TypeAlias = Mapping[str, float | None]

WIDTH = 32
RANGES: Ranges = {"query": 3.0, "key": 3.0, "out": 20.0}


def weights_of(*names: str) -> dict[str, Array]:
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal((WIDTH, WIDTH)).astype(np.float32) for name in names}


WEIGHTS = weights_of("query", "key", "out", "last")


def attention(dtype: type[np.floating[Any]] = np.float32, weights: Mapping[str, Array] = WEIGHTS) -> ModelProto:
    """x → ((x @ query) * (x @ key)) @ out @ last, where query and key share an activation."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, y = (helper.make_tensor_value_info(name, kind, ["batch", "steps", WIDTH]) for name in "xy")
    nodes = [
        helper.make_node("MatMul", ["x", "query.matrix"], ["q"], name="query"),
        helper.make_node("MatMul", ["x", "key.matrix"], ["k"], name="key"),
        helper.make_node("Mul", ["q", "k"], ["scores"], name="scores"),
        helper.make_node("MatMul", ["scores", "out.matrix"], ["z"], name="out"),
        helper.make_node("MatMul", ["z", "last.matrix"], ["y"], name="last"),
    ]
    initializers = [numpy_helper.from_array(value.astype(dtype), f"{name}.matrix") for name, value in weights.items()]
    graph = helper.make_graph(nodes, "attention", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def constants(model: ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def producers(model: ModelProto) -> dict[str, NodeProto]:
    return {node.output[0]: node for node in model.graph.node}


def run(model: ModelProto, x: Array, directory: Path) -> Array:
    onnx.save_model(model, directory / "model.onnx")
    [y] = OnnxSession(directory / "model.onnx", threads=1).run({"x": torch.from_numpy(x)}).values()
    result: Array = y.numpy()
    return result


# --- where


@pytest.fixture(params=[np.float32, np.float16], ids=["fp32", "fp16"])
def dtype(request: pytest.FixtureRequest) -> type[np.floating[Any]]:
    kind: type[np.floating[Any]] = request.param
    return kind


def test_operands_come_from_int8(dtype: type[np.floating[Any]]) -> None:
    """Of both operands, with scales in the graph's own precision, per output for weights and zero points of zero."""
    model = insert_qdq(attention(dtype), RANGES)
    made_by, values = producers(model), constants(model)
    onnx.checker.check_model(model, full_check=True)

    for node in model.graph.node:
        if node.name not in RANGES:
            continue
        left, right = (made_by[name] for name in node.input)
        assert (left.op_type, right.op_type) == ("DequantizeLinear", "DequantizeLinear")
        assert made_by[left.input[0]].op_type == "QuantizeLinear"
        assert list(made_by[left.input[0]].input[1:]) == list(left.input[1:])
        assert values[right.input[0]].dtype == np.int8
        assert [attribute.i for attribute in right.attribute if attribute.name == "axis"] == [1]
        for parameters, shape in ((left.input[1:], ()), (right.input[1:], (WIDTH,))):
            scale, zero_point = (values[name] for name in parameters)
            assert (scale.dtype, scale.shape) == (np.dtype(dtype), shape)
            assert (zero_point.dtype, zero_point.shape) == (np.dtype(np.int8), shape)
            assert not zero_point.any()


def test_products_that_share_an_activation_share_its_int8(dtype: type[np.floating[Any]]) -> None:
    """Quantised once, and a DQ for each product, or TensorRT would not fuse it."""
    model = insert_qdq(attention(dtype), RANGES)
    made_by = producers(model)
    query, key, out = (node for node in model.graph.node if node.name in RANGES)

    assert Counter(node.op_type for node in model.graph.node) == {
        "QuantizeLinear": 2,
        "DequantizeLinear": 6,
        "MatMul": 4,
        "Mul": 1,
    }
    assert query.input[0] != key.input[0]
    assert made_by[query.input[0]].input == made_by[key.input[0]].input
    assert made_by[made_by[query.input[0]].input[0]].input[0] == "x"
    assert made_by[made_by[out.input[0]].input[0]].input[0] == "scores"


def test_everything_else_stays(dtype: type[np.floating[Any]]) -> None:
    before = attention(dtype)
    model = insert_qdq(before, RANGES)
    names = [node.name for node in model.graph.node]

    assert (model.graph.input, model.graph.output) == (before.graph.input, before.graph.output)
    assert [node for node in model.graph.node if node.name in ("scores", "last")] == list(before.graph.node)[2::2]
    assert list(products_of(model)) == ["last"]
    assert len(set(names)) == len(names)
    assert [name for name in constants(model) if name.endswith(".matrix")] == ["last.matrix"]


def test_weights_alone(dtype: type[np.floating[Any]]) -> None:
    model = insert_qdq(attention(dtype), {"query": None, "out": None})
    made_by = producers(model)

    assert Counter(node.op_type for node in model.graph.node) == {"DequantizeLinear": 2, "MatMul": 4, "Mul": 1}
    for node in model.graph.node:
        if node.name in ("query", "out"):
            assert node.input[0] in ("x", "scores")
            assert made_by[node.input[1]].op_type == "DequantizeLinear"


def test_nothing_named_changes_nothing() -> None:
    before = attention()

    assert insert_qdq(before, {}).graph == before.graph


def test_the_same_in_both_precisions() -> None:
    single, half = (insert_qdq(attention(kind), RANGES) for kind in (np.float32, np.float16))
    exact, rounded = constants(single), constants(half)

    assert single.graph.node == half.graph.node
    assert exact.keys() == rounded.keys()
    for name, value in exact.items():
        if name.endswith(".scale"):
            np.testing.assert_allclose(rounded[name], value, rtol=2**-10)
        elif name.endswith(".int8"):  # near a half, another scale rounds to another side
            assert np.abs(rounded[name].astype(int) - value).max() <= 1


@pytest.mark.parametrize(("dtype", "smallest"), SMALLEST_SCALE.items())
def test_an_activation_that_is_always_zero(dtype: type[np.floating[Any]], smallest: float) -> None:
    values = constants(insert_qdq(attention(dtype), {"query": 0.0}))

    assert values["x.scale"] == dtype(smallest) > 0


def test_a_head_that_is_tied(tiny_en: LoadedModel, artefact_cache: Path) -> None:
    """The embedding goes on in float32, the vocabulary has its transpose in int8."""
    decoder = onnx.load(ensure_artefacts(tiny_en.checkpoint, Recipe("fp32"), artefact_cache).decoder)
    model = insert_qdq(decoder, {HEAD: 1.0})
    shape = (tiny_en.dims.n_vocab, tiny_en.dims.n_text_state)
    shapes = Counter((value.dtype.name, value.shape) for value in constants(model).values())

    assert shapes["float32", shape] == shapes["int8", shape[::-1]] == 1
    assert products_of(decoder).keys() - products_of(model).keys() == {HEAD}


# --- what they compute


def fake_quantized(x: Array, ranges: Ranges) -> Array:
    """What the graph should give, in float64: operands rounded to int8 and multiplied back."""

    def product(left: Array, name: str) -> Array:
        if name not in ranges:
            return left @ WEIGHTS[name].astype(np.float64)
        values, scales = symmetric_int8(WEIGHTS[name], np.float32)
        largest = ranges[name]
        if largest is not None:
            scale = np.float32(largest / 127)
            left = np.clip(np.rint(left.astype(np.float32) / scale), -128, 127) * np.float64(scale)
        return left @ (values * scales.astype(np.float64))

    return product(product(product(x, "query") * product(x, "key"), "out"), "last")


INPUT = np.random.default_rng(1).standard_normal((2, 5, WIDTH)).astype(np.float32)
SHARED: Ranges = {"query": 3.0, "key": 3.0}
WEIGHTS_ALONE: Ranges = dict.fromkeys(WEIGHTS)


def difference(actual: Array, expected: Array) -> float:
    """The largest, as a share of the largest value."""
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("ranges", [SHARED, {"out": 40.0}, {**SHARED, "out": 40.0, "last": 300.0}])
def test_onnx_runtime_computes_what_rounding_by_hand_gives(tmp_path: Path, ranges: Ranges) -> None:
    actual = run(insert_qdq(attention(), ranges), INPUT, tmp_path)

    assert difference(actual, fake_quantized(INPUT, ranges)) < 1e-5
    assert difference(actual, fake_quantized(INPUT, {})) > 1e-3


@pytest.mark.parametrize("ranges", [SHARED, WEIGHTS_ALONE, {"query": None, "out": 40.0}])
def test_the_graph_says_what_rounding_by_hand_gives(ranges: Ranges) -> None:
    """By ONNX's own reference."""
    outputs: Any = ReferenceEvaluator(insert_qdq(attention(), ranges)).run(None, {"x": INPUT})
    actual = np.asarray(outputs[0])

    assert difference(actual, fake_quantized(INPUT, ranges)) < 1e-5
    assert difference(actual, fake_quantized(INPUT, {})) > 1e-3


def test_weights_alone_in_onnx_runtime(tmp_path: Path) -> None:
    """It multiplies by them in int8, and for that rounds the activations of each token too."""
    actual = run(insert_qdq(attention(), WEIGHTS_ALONE), INPUT, tmp_path)

    assert difference(actual, fake_quantized(INPUT, WEIGHTS_ALONE)) < 0.03


@pytest.mark.parametrize("scale", [1, 2])
def test_small_integers_are_multiplied_exactly(tmp_path: Path, dtype: type[np.floating[Any]], scale: int) -> None:
    """Where no scale rounds anything; what is out of range is clipped."""
    generator = np.random.default_rng(0)
    identity = np.eye(WIDTH, dtype=np.float32)
    query = generator.integers(-1, 2, (WIDTH, WIDTH)).astype(np.float32)
    query[0], query[-1] = 127, 0
    ones = np.zeros_like(identity)
    ones[-1] = 1  # x @ ones is 1 everywhere
    x = 2 * generator.integers(-3, 4, (1, 3, WIDTH)).astype(dtype)
    x[..., 0], x[..., -1] = 0, 1
    x[0, 1, 1], x[0, 2, 1] = 1000, -1000
    model = attention(dtype, {"query": query, "key": ones, "out": identity, "last": identity})
    y = run(insert_qdq(model, {"query": 127.0 * scale}), x, tmp_path)

    assert y.dtype == dtype
    assert y.tolist() == (np.clip(x, -128 * scale, 127 * scale) @ query).tolist()
