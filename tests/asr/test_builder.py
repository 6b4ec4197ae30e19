"""What a build lacks is said before it has worked for it: the weights are not even read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from asr.build.builder import build
from asr.build.recipe import Recipe, TensorRTSettings
from asr.checkpoint import Checkpoint, load_checkpoint
from asr.checkpoint.normalised import Weights
from asr.errors import ArtefactError
from asr.model import Dims
from tests.asr.reference import random_weights
from tests.asr.writers import write_openai

DIMS = Dims(80, 1500, 16, 2, 1, 51_864, 448, 16, 2, 1)
JIWER, MODELOPT = ["jiwer"], ["modelopt", "modelopt.onnx", "modelopt.onnx.autocast", "modelopt.onnx.autocast.convert"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """One whose weights are never to be read."""

    def read_weights() -> Weights:
        pytest.fail("the weights were read")

    path = tmp_path_factory.mktemp("model") / "little.pt"
    write_openai(path, DIMS, random_weights(DIMS))
    return replace(load_checkpoint(path), read_weights=read_weights)


def manifest(folder: Path, **entry: str) -> Path:
    path = folder / "manifest.jsonl"
    path.write_text(json.dumps({"file": "a.wav", **entry}))
    return path


def refused(checkpoint: Checkpoint, recipe: Recipe, directory: Path) -> str:
    with pytest.raises((ArtefactError, ValueError)) as caught:
        build(checkpoint, recipe, directory, threads=1, done=lambda _: None)
    assert not list(directory.glob("*.onnx"))
    return str(caught.value)


@pytest.mark.parametrize("recipe", [Recipe("int8", "tensorrt"), Recipe("int8", activations="calibrated")])
def test_without_recordings(checkpoint: Checkpoint, tmp_path: Path, recipe: Recipe) -> None:
    assert "needs a calibration set" in refused(checkpoint, recipe, tmp_path)


def test_without_texts(checkpoint: Checkpoint, tmp_path: Path) -> None:
    recipe = Recipe("mixed", calibration=manifest(tmp_path))

    assert "has no texts to count errors with" in refused(checkpoint, recipe, tmp_path)


@pytest.mark.parametrize(
    ("missing", "recipe", "needed"),
    [
        (MODELOPT, Recipe("fp16"), "ModelOpt"),
        (MODELOPT, Recipe("int8-weights", "tensorrt"), "ModelOpt"),
        (JIWER, Recipe("mixed"), "jiwer"),
    ],
)
def test_without_a_package(
    checkpoint: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    missing: Sequence[str],
    recipe: Recipe,
    needed: str,
) -> None:
    for module in missing:
        monkeypatch.setitem(sys.modules, module, None)
    recipe = replace(recipe, calibration=manifest(tmp_path, text="a word"))

    assert f"needs {needed}: pip install rayscribe[precision]" in refused(checkpoint, recipe, tmp_path)


def test_for_frames_that_the_model_has_not(checkpoint: Checkpoint, tmp_path: Path) -> None:
    recipe = Recipe("fp32", "tensorrt", tensorrt=TensorRTSettings(frames=(280, 800, 4000)))

    assert "at most 3000" in refused(checkpoint, recipe, tmp_path)
