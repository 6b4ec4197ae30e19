"""What becomes int8, and how near it stays to float32."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from torch import Tensor

from asr.build.artefacts import ensure_artefacts
from asr.build.per_token import has_exact_u8s8, quantize_per_token
from asr.build.products import HEAD, products_of
from asr.build.recipe import Recipe
from asr.features import SAMPLE_RATE, LogMel, padded
from asr.sessions.onnxruntime import OnnxSession
from asr.window import window_for
from tests.asr.reference import LoadedModel

THREADS = 1
MIN_COSINE = 0.996
"""Of each output of the encoder with float32's. Measured over the four cuts below: 0.9971 to 0.9996. With ONNX
Runtime's own dynamic quantisation, which takes one range for the whole tensor, the worst is 0.9924."""

exact_products = pytest.mark.skipif(not has_exact_u8s8(), reason="this processor has no exact u8 x s8 product (VNNI)")


@dataclass(frozen=True)
class Graphs:
    """The same graph in three forms."""

    exact: ModelProto
    signed: ModelProto
    unsigned: ModelProto

    @classmethod
    def of(cls, path: Path) -> Graphs:
        return cls(onnx.load(path), quantized(onnx.load(path), signed=True), quantized(onnx.load(path), signed=False))


@pytest.fixture(scope="module")
def encoder(tiny_en: LoadedModel, artefact_cache: Path) -> Graphs:
    return Graphs.of(ensure_artefacts(tiny_en.checkpoint, Recipe("fp32"), artefact_cache).encoder)


@pytest.fixture(scope="module")
def decoder(tiny_en: LoadedModel, artefact_cache: Path) -> Graphs:
    return Graphs.of(ensure_artefacts(tiny_en.checkpoint, Recipe("fp32"), artefact_cache).decoder)


def quantized(model: ModelProto, *, signed: bool) -> ModelProto:
    """With every product in int8."""
    return quantize_per_token(model, products_of(model).keys(), signed_weights=signed)


def session(model: ModelProto, directory: Path, name: str) -> OnnxSession:
    path = directory / f"{name}.onnx"
    onnx.save_model(model, path)
    return OnnxSession(path, THREADS)


# --- which products


def products(model: ModelProto) -> list[str]:
    """Names of the products by a constant matrix that are in float32."""
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {
        node.output[0] for node in model.graph.node if node.op_type == "Transpose" and node.input[0] in constants
    }
    return [node.name for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in constants]


def quantized_products(model: ModelProto) -> int:
    return Counter(node.op_type for node in model.graph.node)["MatMulIntegerToFloat"]


@pytest.mark.parametrize("form", ["signed", "unsigned"])
def test_every_product_of_the_encoder(tiny_en: LoadedModel, encoder: Graphs, form: str) -> None:
    """Of each layer query, key, value, output and two of the network; key and value for each decoder layer."""
    model, dims = getattr(encoder, form), tiny_en.dims

    assert quantized_products(model) == 6 * dims.n_audio_layer + 2 * dims.n_text_layer == len(products(encoder.exact))
    assert products(model) == []


@pytest.mark.parametrize("form", ["signed", "unsigned"])
def test_every_product_of_the_decoder(tiny_en: LoadedModel, decoder: Graphs, form: str) -> None:
    """Of each layer four for attention to itself, two to the encoder, two of the network; and the vocabulary."""
    model, dims = getattr(decoder, form), tiny_en.dims

    assert quantized_products(model) == 8 * dims.n_text_layer + 1 == len(products(decoder.exact))
    assert products(model) == []


@pytest.mark.parametrize("signed", [True, False])
def test_only_what_is_named(decoder: Graphs, signed: bool) -> None:
    names = ["blocks.1.attn.value", "blocks.0.mlp.2"]
    model = quantize_per_token(decoder.exact, names, signed_weights=signed)

    assert quantized_products(model) == 2
    assert products(model) == [name for name in products(decoder.exact) if name not in names]
    assert products(quantize_per_token(decoder.exact, [], signed_weights=signed)) == products(decoder.exact)


def test_products_of_two_activations_stay(encoder: Graphs) -> None:
    def count(model: ModelProto) -> int:
        return Counter(node.op_type for node in model.graph.node)["MatMul"] - len(products(model))

    assert count(encoder.signed) == count(encoder.exact) > 0


def test_the_head_shares_the_embedding_and_is_quantized(tiny_en: LoadedModel, decoder: Graphs) -> None:
    """The vocabulary's matrix is the transpose of a weight that embeds tokens too, which it does in float32."""
    dims = tiny_en.dims
    shapes = {tensor.name: (tensor.data_type, tuple(tensor.dims)) for tensor in decoder.signed.graph.initializer}

    assert (TensorProto.INT8, (dims.n_text_state, dims.n_vocab)) in shapes.values()
    assert list(shapes.values()).count((TensorProto.FLOAT, (dims.n_vocab, dims.n_text_state))) == 1
    assert HEAD in products(decoder.exact)
    assert HEAD not in products(decoder.signed)


def test_what_is_not_used_any_more_is_gone(encoder: Graphs) -> None:
    used = {name for node in encoder.signed.graph.node for name in node.input}
    names = [tensor.name for tensor in encoder.signed.graph.initializer]

    assert set(names) <= used
    assert len(names) == len(set(names))
    assert encoder.signed.ByteSize() < 0.5 * encoder.exact.ByteSize()


# --- one product


def one_product(weight: NDArray[np.float32]) -> ModelProto:
    """x (batch, steps, inputs) → y = x @ weight"""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None, None]) for name in "xy")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"], name="product")],
        "product",
        [x],
        [y],
        [numpy_helper.from_array(weight, "weight")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("signed", [pytest.param(True, marks=exact_products), False])
def test_small_integers_are_multiplied_exactly(tmp_path: Path, signed: bool) -> None:
    """Where each token and each column reaches 127, every scale is 1 and nothing is rounded."""
    generator = np.random.default_rng(0)
    x = generator.integers(-127, 128, (2, 3, 8)).astype(np.float32)
    weight = generator.integers(-127, 128, (8, 5)).astype(np.float32)
    x[..., 0], weight[0] = 127, -127
    product = session(quantized(one_product(weight), signed=signed), tmp_path, "product")
    [y] = product.run({"x": torch.from_numpy(x)}).values()

    assert y.tolist() == (x @ weight).tolist()


@pytest.mark.parametrize("signed", [pytest.param(True, marks=exact_products), False])
def test_tokens_and_columns_of_any_size(tmp_path: Path, signed: bool) -> None:
    """Each has a scale of its own: a loud token or column does not drown a quiet one, and zeros stay zeros."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((1, 4, 64)).astype(np.float32) * np.array([[1e-3], [1.0], [0.0], [1e3]], np.float32)
    weight = generator.standard_normal((64, 3)).astype(np.float32) * np.array([1e-2, 0.0, 1e2], np.float32)
    product = session(quantized(one_product(weight), signed=signed), tmp_path, "product")
    [y] = product.run({"x": torch.from_numpy(x)}).values()

    sizes = np.linalg.norm(x, axis=-1)[..., None] * np.linalg.norm(weight, axis=0)
    assert (np.abs(y.numpy() - x @ weight) <= 0.01 * sizes / 2).all()
    assert (y[0, 2] == 0).all()
    assert (y[0, :, 1] == 0).all()


# --- the encoder


def batch_of(cuts: list[NDArray[np.float32]]) -> dict[str, Tensor]:
    """Equally long cuts."""
    log_mels = [LogMel(80)(cut) for cut in cuts]
    window = window_for(log_mels[0].shape[1])
    rows = len(cuts)
    return {
        "mel": torch.from_numpy(np.stack([padded(log_mel, window.frames) for log_mel in log_mels])),
        "frame_counts": torch.tensor([window.frames] * rows),
        "position_ids": torch.from_numpy(window.position_ids).repeat(rows, 1),
        "attention_bias": torch.from_numpy(window.attention_bias).repeat(rows, 1),
    }


@pytest.fixture(scope="module")
def batch(speech: NDArray[np.float32]) -> dict[str, Tensor]:
    """Four cuts of 4 s."""
    return batch_of([speech[start * SAMPLE_RATE : (start + 4) * SAMPLE_RATE] for start in (0, 8, 16, 24)])


@pytest.fixture(scope="module")
def outputs(
    encoder: Graphs, batch: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Tensor]]:
    directory = tmp_path_factory.mktemp("graphs")
    return {
        form: session(getattr(encoder, form), directory, form).run(batch) for form in ("exact", "signed", "unsigned")
    }


def cosine(actual: Tensor, expected: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(actual.flatten(), expected.flatten(), dim=0))


@exact_products
def test_the_encoder_stays_near_float32(outputs: dict[str, dict[str, Tensor]]) -> None:
    for name, expected in outputs["exact"].items():
        for row in range(len(expected)):
            assert MIN_COSINE < cosine(outputs["signed"][name][row], expected[row]) < 1 - 1e-6, (name, row)


def test_the_encoder_with_unsigned_weights_stays_near_float32(outputs: dict[str, dict[str, Tensor]]) -> None:
    for name, expected in outputs["exact"].items():
        assert MIN_COSINE < cosine(outputs["unsigned"][name], expected) < 1 - 1e-6, name


@exact_products
def test_unsigned_weights_are_the_same_weights(outputs: dict[str, dict[str, Tensor]]) -> None:
    for name, expected in outputs["signed"].items():
        torch.testing.assert_close(outputs["unsigned"][name], expected, rtol=0, atol=0)


@pytest.mark.parametrize("form", [pytest.param("signed", marks=exact_products), "unsigned"])
def test_a_row_does_not_depend_on_the_others(
    encoder: Graphs, tmp_path: Path, batch: dict[str, Tensor], form: str
) -> None:
    """Not even on one that is a thousand times as large."""
    encode = session(getattr(encoder, form), tmp_path, form)
    loud = {**batch, "mel": batch["mel"].clone()}
    loud["mel"][1:] *= 1000
    alone = encode.run({name: value[:1].contiguous() for name, value in batch.items()})
    beside = encode.run(loud)

    for name, expected in alone.items():
        assert cosine(beside[name][:1], expected) > 0.9999, name


@pytest.mark.parametrize(
    ("machine", "flags", "exact"),
    [
        ("x86_64", "fma avx2 avx512f", False),
        ("x86_64", "fma avx2 avx_vnni", True),
        ("AMD64", "avx512f avx512_vnni", True),
        ("x86_64", None, False),
        ("aarch64", None, True),
    ],
)
def test_which_processors_have_exact_products(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, flags: str | None, exact: bool
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    if flags is not None:
        cpuinfo.write_text(f"processor : 0\nflags : fpu {flags} sse\n")
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("asr.build.per_token.Path", lambda _: cpuinfo)

    assert has_exact_u8s8() is exact
