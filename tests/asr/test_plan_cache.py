"""Which of the plans in the cache is used: one for this GPU, by this TensorRT, of these settings, and whole."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.build.artefacts import MANIFEST, Artefacts, ensure_artefacts
from asr.build.recipe import Recipe, TensorRTSettings
from asr.checkpoint import Checkpoint, load_checkpoint
from asr.checkpoint.normalised import Weights
from asr.errors import CheckpointError
from asr.model import Dims
from asr.tensorrt_library import TensorRTLibrary
from tests.asr.reference import random_weights
from tests.asr.writers import write_openai

A10G = "sm86"
DIMS = Dims(80, 1500, 16, 2, 1, 51_864, 448, 16, 2, 1)
SETTINGS = TensorRTSettings(A10G, max_batch=4)


def recipe(settings: TensorRTSettings | None = SETTINGS) -> Recipe:
    return Recipe("fp32", "tensorrt", tensorrt=settings)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A model of one layer that was never trained."""
    path = tmp_path_factory.mktemp("model") / "little.pt"
    write_openai(path, DIMS, random_weights(DIMS))
    return load_checkpoint(path)


@pytest.fixture(scope="module")
def built(compiler: TensorRTLibrary, checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Artefacts:
    return ensure_artefacts(checkpoint, recipe(), tmp_path_factory.mktemp("cache"))


def serves(built: Artefacts, checkpoint: Checkpoint, wanted: Recipe) -> bool:
    """Whether what was built is used; what cannot be is built anew, for which this checkpoint is not readable."""

    def read_weights() -> Weights:
        raise CheckpointError("little.pt", "cannot be read any more")

    try:
        artefacts = ensure_artefacts(replace(checkpoint, read_weights=read_weights), wanted, built.directory.parent)
    except CheckpointError:
        return False
    return artefacts.directory == built.directory


def test_a_plan_is_used_again(built: Artefacts, checkpoint: Checkpoint) -> None:
    assert sorted(path.name for path in built.directory.iterdir()) == ["decoder.plan", "encoder.plan", MANIFEST]
    assert (built.encoder.name, built.decoder.name) == ("encoder.plan", "decoder.plan")
    assert serves(built, checkpoint, recipe())


@pytest.mark.parametrize(
    "settings",
    [
        replace(SETTINGS, target="sm89"),
        replace(SETTINGS, max_batch=5),
        replace(SETTINGS, frames=(280, 1000, 3000)),
        replace(SETTINGS, optimization_level=3),
        replace(SETTINGS, workspace_mib=1000),
    ],
    ids=["GPU", "rows", "frames", "level", "workspace"],
)
def test_a_plan_for_other_settings_is_not(built: Artefacts, checkpoint: Checkpoint, settings: TensorRTSettings) -> None:
    assert not serves(built, checkpoint, recipe(settings))


@pytest.mark.parametrize("change", [{"version": "99.0"}, {"name": "TensorRT"}])
def test_a_plan_of_another_library_is_not(
    built: Artefacts,
    checkpoint: Checkpoint,
    compiler: TensorRTLibrary,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
) -> None:
    monkeypatch.setattr("asr.build.artefacts.load_tensorrt", lambda: replace(compiler, **change))

    assert not serves(built, checkpoint, recipe())


def test_a_plan_of_another_system_is_not(
    built: Artefacts, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Windows")

    assert not serves(built, checkpoint, recipe())


@pytest.mark.parametrize(("capability", "fits"), [((8, 6), True), ((7, 5), False)])
def test_where_nothing_is_said_the_gpu_decides(
    built: Artefacts, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], fits: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)

    assert serves(built, checkpoint, recipe(None)) is fits


def test_a_damaged_plan_is_built_again(built: Artefacts, checkpoint: Checkpoint, tmp_path: Path) -> None:
    cache = shutil.copytree(built.directory.parent, tmp_path / "cache")
    copy = replace(built, directory=cache / built.directory.name)
    whole = copy.decoder.stat().st_size
    copy.decoder.write_bytes(copy.decoder.read_bytes()[:-1])
    assert ensure_artefacts(checkpoint, recipe(), cache) == copy
    assert copy.decoder.stat().st_size == pytest.approx(whole, rel=0.01)
    assert serves(copy, checkpoint, recipe())
