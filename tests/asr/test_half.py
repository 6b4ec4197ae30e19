"""Graphs in float16: what is float16 in them, what is not, and how near they stay to float32."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto
from torch import Tensor

from asr.build.artefacts import ensure_artefacts
from asr.build.half import to_half
from asr.build.products import products_of
from asr.build.recipe import Recipe
from asr.build.samples import decoder_sample, encoder_sample
from asr.engine import Engine, encoder_inputs
from asr.errors import ArtefactError
from asr.features import SAMPLE_RATE, LogMel
from asr.sessions.onnxruntime import OnnxSession
from asr.transcript import Recognition
from asr.utterance import Utterance
from tests.asr.reference import LoadedModel

MAX_ERROR = 0.002
"""Root mean square, relative to that of float32's output. Measured: 0.0003 to 0.0007."""


@dataclass(frozen=True)
class Converted:
    """One graph before and after, on disk."""

    single: Path
    half: Path

    @property
    def model(self) -> ModelProto:
        return onnx.load(self.half)


Graphs = Mapping[str, Converted]


@pytest.fixture(scope="module")
def samples(tiny_en: LoadedModel) -> dict[str, dict[str, Tensor]]:
    return {"encoder": encoder_sample(tiny_en.dims), "decoder": decoder_sample(tiny_en.dims)}


@pytest.fixture(scope="module")
def graphs(
    tiny_en: LoadedModel,
    artefact_cache: Path,
    samples: dict[str, dict[str, Tensor]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Graphs:
    artefacts = ensure_artefacts(tiny_en.checkpoint, Recipe("fp32"), artefact_cache)
    folder = tmp_path_factory.mktemp("half")
    for path in (artefacts.encoder, artefacts.decoder):
        onnx.save_model(to_half(path, samples[path.stem]), folder / path.name)
    return {path.stem: Converted(path, folder / path.name) for path in (artefacts.encoder, artefacts.decoder)}


@pytest.fixture(scope="module", params=["encoder", "decoder"])
def graph(request: pytest.FixtureRequest, graphs: Graphs) -> Converted:
    return graphs[request.param]


# --- what is float16


def test_everything_that_goes_in_and_out(graph: Converted) -> None:
    before, after = onnx.load(graph.single).graph, graph.model.graph
    kinds = {TensorProto.FLOAT: TensorProto.FLOAT16, TensorProto.INT64: TensorProto.INT64}

    for old, new in ((before.input, after.input), (before.output, after.output)):
        assert [value.name for value in new] == [value.name for value in old]
        for old_value, new_value in zip(old, new, strict=True):
            assert new_value.type.tensor_type.elem_type == kinds[old_value.type.tensor_type.elem_type], old_value.name
    assert [value.type.tensor_type.shape for value in after.input] == [
        value.type.tensor_type.shape for value in before.input
    ]


def test_all_weights(graph: Converted) -> None:
    """Half as large, apart from the tied embedding, which is there twice."""

    def distinct_bytes(model: ModelProto) -> int:
        return sum(map(len, {tensor.raw_data for tensor in model.graph.initializer}))

    before, after = onnx.load(graph.single), graph.model
    kinds = Counter(tensor.data_type for tensor in after.graph.initializer if np.prod(tensor.dims) > 1)
    assert kinds.keys() == {TensorProto.FLOAT16, TensorProto.INT64}
    assert distinct_bytes(after) == pytest.approx(distinct_bytes(before) / 2, rel=0.01)


def test_products_keep_their_names(graph: Converted) -> None:
    before, after = products_of(onnx.load(graph.single)), products_of(graph.model)

    assert list(after) == list(before)
    for name, product in after.items():
        assert product.weight.dtype == np.float16
        np.testing.assert_allclose(product.weight, before[name].weight, rtol=2**-10, atol=2**-24)


def test_normalisation_stays_one_operator(graph: Converted) -> None:
    """Decomposed, its sum of squares would not fit float16."""

    def operators(model: ModelProto) -> Counter[str]:
        return Counter(node.op_type for node in model.graph.node)

    before, after = operators(onnx.load(graph.single)), operators(graph.model)
    assert after["LayerNormalization"] == before["LayerNormalization"] > 0
    assert after.keys() - before.keys() <= {"Cast"}
    assert {kind: after[kind] for kind in ("MatMul", "Softmax", "Gelu", "Conv")} == {
        kind: before[kind] for kind in ("MatMul", "Softmax", "Gelu", "Conv")
    }


# --- what it computes


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.float() - expected).norm() / expected.norm())


def halved(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.half() if value.is_floating_point() else value for name, value in inputs.items()}


def test_the_encoder_stays_near_float32(graphs: Graphs, speech: NDArray[np.float32]) -> None:
    """On two rows, one of them padded, whose masked positions must not become anything but numbers."""
    log_mel = LogMel(80)(speech[: 6 * SAMPLE_RATE])
    inputs = encoder_inputs([Utterance(log_mel), Utterance(log_mel[:, :200])])
    single, half = (OnnxSession(path, threads=1) for path in (graphs["encoder"].single, graphs["encoder"].half))
    expected, actual = single.run(inputs), half.run(halved(inputs))
    positions = [Utterance(log_mel[:, :frames]).window.positions for frames in (log_mel.shape[1], 200)]

    assert (single.dtype, half.dtype) == (torch.float32, torch.float16)
    for name, value in expected.items():
        assert actual[name].dtype == torch.float16
        assert actual[name].isfinite().all()
        for row, count in enumerate(positions):
            along = 2 if "key" in name else 1
            got, wanted = (tensor[row].narrow(along, 0, count) for tensor in (actual[name], value))
            assert error(got, wanted) < MAX_ERROR, name


def test_the_decoder_stays_near_float32(graphs: Graphs, samples: dict[str, dict[str, Tensor]]) -> None:
    inputs = samples["decoder"]
    expected = OnnxSession(graphs["decoder"].single, threads=1).run(inputs)
    actual = OnnxSession(graphs["decoder"].half, threads=1).run(halved(inputs))

    for name, value in expected.items():
        assert actual[name].dtype == torch.float16
        assert error(actual[name], value) < MAX_ERROR, name


def test_the_same_is_heard(tiny_en: LoadedModel, graphs: Graphs, speech: NDArray[np.float32]) -> None:
    log_mel = LogMel(80)
    cuts = [speech[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] for start, end in ((0.5, 4.7), (6.4, 8.5))]
    heard = {}
    for form in ("single", "half"):
        encoder, decoder = (OnnxSession(getattr(graphs[name], form), threads=1) for name in ("encoder", "decoder"))
        engine = Engine(tiny_en.dims, tiny_en.checkpoint.tokenizer, encoder, decoder)
        heard[form] = engine.recognize([Utterance(log_mel(cut)) for cut in cuts])

    for single, half in zip(heard["single"], heard["half"], strict=True):
        assert isinstance(single, Recognition)
        assert isinstance(half, Recognition)
        assert half.tokens == single.tokens
        assert half.avg_logprob == pytest.approx(single.avg_logprob, abs=0.01)
        assert len(half.tokens) > 5


# --- what cannot be converted


def test_without_modelopt(
    tmp_path: Path, samples: dict[str, dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("modelopt", "modelopt.onnx", "modelopt.onnx.autocast", "modelopt.onnx.autocast.convert"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ArtefactError, match=r"^float16: needs ModelOpt: pip install rayscribe\[precision\]"):
        to_half(tmp_path / "encoder.onnx", samples["encoder"])


@pytest.mark.parametrize("content", [None, b"no graph"])
def test_what_is_no_graph(tmp_path: Path, samples: dict[str, dict[str, Tensor]], content: bytes | None) -> None:
    path = tmp_path / "encoder.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ArtefactError, match=r"encoder\.onnx: cannot be converted to float16"):
        to_half(path, samples["encoder"])
