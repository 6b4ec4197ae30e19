"""Which backend "auto" is, and an OpenVINO that is not there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from asr.build.recipe import PRECISIONS, Precision
from asr.checkpoint import Checkpoint
from asr.errors import ArtefactError
from asr.loading import load_engine
from asr.openvino_library import OpenVinoLibrary, cpu_backend, load_openvino
from asr.sessions.onnxruntime import OnnxSession
from asr.sessions.openvino import OpenVinoSession


class Core:
    """Of a processor with these capabilities."""

    def __init__(self, *capabilities: str) -> None:
        self._capabilities = capabilities

    def get_property(self, device: str, name: str) -> list[str]:
        assert (device, name) == ("CPU", "OPTIMIZATION_CAPABILITIES")
        return list(self._capabilities)


def on_a_processor(monkeypatch: pytest.MonkeyPatch, *capabilities: str) -> None:
    library = OpenVinoLibrary(SimpleNamespace(), Core(*capabilities))
    monkeypatch.setattr("asr.openvino_library.load_openvino", lambda: library)


@pytest.fixture
def without_openvino(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    load_openvino.cache_clear()
    monkeypatch.setitem(sys.modules, "openvino", None)
    yield
    load_openvino.cache_clear()


# --- the choice


@pytest.mark.parametrize("precision", get_args(Precision))
def test_with_bfloat16_openvino_runs_what_is_faster(monkeypatch: pytest.MonkeyPatch, precision: Precision) -> None:
    on_a_processor(monkeypatch, "FP32", "BF16", "INT8")

    assert cpu_backend(precision) == ("openvino" if precision in ("bf16", "int8") else "onnx")


@pytest.mark.parametrize("precision", PRECISIONS["onnx"])
def test_without_bfloat16_onnx_runtime_runs_everything(monkeypatch: pytest.MonkeyPatch, precision: Precision) -> None:
    on_a_processor(monkeypatch, "FP32", "INT8")

    assert cpu_backend(precision) == "onnx"


@pytest.mark.usefixtures("without_openvino")
@pytest.mark.parametrize("precision", PRECISIONS["onnx"])
def test_without_openvino_onnx_runtime_runs_everything(precision: Precision) -> None:
    assert cpu_backend(precision) == "onnx"


def test_what_only_openvino_has_is_its(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where it is slow, or not there, which is said when it is loaded."""
    on_a_processor(monkeypatch, "FP32")

    assert cpu_backend("bf16") == "openvino"


@pytest.mark.parametrize(("capabilities", "session"), [(("FP32", "BF16"), OpenVinoSession), (("FP32",), OnnxSession)])
def test_the_choice_is_what_runs(
    checkpoint: Checkpoint,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capabilities: tuple[str, ...],
    session: type[object],
) -> None:
    on_a_processor(monkeypatch, *capabilities)
    engine = load_engine(checkpoint, precision="int8", cache_dir=cache)

    assert type(engine._decoder._session) is session


# --- what is missing


@pytest.mark.usefixtures("without_openvino")
def test_an_openvino_that_is_not_installed() -> None:
    with pytest.raises(ArtefactError, match=r"OpenVINO: is not installed: pip install rayscribe\[openvino\]"):
        load_openvino()


@pytest.mark.parametrize("error", [ImportError("libtbb.so.12"), OSError("libtbb.so.12"), RuntimeError("no plugins")])
def test_an_openvino_that_is_broken(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(load_openvino().module, "Core", fails)
    with pytest.raises(ArtefactError, match=f"OpenVINO: is installed but cannot be loaded .*{error}"):
        load_openvino.__wrapped__()


@pytest.mark.usefixtures("without_openvino")
@pytest.mark.parametrize("precision", PRECISIONS["openvino"])
def test_an_engine_says_what_it_lacks(checkpoint: Checkpoint, cache: Path, precision: Precision) -> None:
    with pytest.raises(ArtefactError, match=r"pip install rayscribe\[openvino\]"):
        load_engine(checkpoint, precision=precision, backend="openvino", cache_dir=cache)
