"""Which of the graphs in a cache fit: those made of the same weights, by the same recipe, code and libraries."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asr.model
from asr.build import per_token
from asr.build.artefacts import MANIFEST, Artefacts, ensure_artefacts
from asr.build.recipe import Precision, Recipe
from asr.checkpoint import Checkpoint, load_checkpoint
from asr.errors import ArtefactError, CheckpointError
from asr.features import SAMPLE_RATE
from tests.asr.artefact_caches import DIMS, FP32, INT8, directories, truncate, unreadable
from tests.asr.reference import random_weights
from tests.asr.writers import write_openai
from tests.audio_files import wav


def serves(cache: Path, checkpoint: Checkpoint, recipe: Recipe) -> bool:
    """Whether the cache has what is wanted; if not, what it has stays."""
    before = directories(cache)
    try:
        return ensure_artefacts(unreadable(checkpoint), recipe, cache).directory in before
    except (CheckpointError, ArtefactError):  # the latter where a calibration set is missed even before the weights
        assert directories(cache) == before
        return False


def copy_of(directory: Path, key: str, *, older_by_s: float) -> Path:
    """The same under another key, as a build of some other time would have left it."""
    copy = directory.with_name(f"{directory.name[:-16]}{key * 16}")
    shutil.copytree(directory, copy)
    modified = directory.stat().st_mtime - older_by_s
    os.utime(copy, (modified, modified))
    return copy


def test_the_same_content_fits(checkpoint: Checkpoint, weights_file: Path, cache: Path, tmp_path: Path) -> None:
    copy = shutil.copy(weights_file, tmp_path / "little.pt")

    assert serves(cache, load_checkpoint(copy), FP32)


def test_other_weights_do_not(checkpoint: Checkpoint, cache: Path, tmp_path: Path) -> None:
    other = random_weights(DIMS)
    other["encoder.conv1.bias"][0] += 1
    write_openai(tmp_path / "little.pt", DIMS, other)

    assert not serves(cache, load_checkpoint(tmp_path / "little.pt"), FP32)


@pytest.mark.parametrize(
    "recipe", [INT8, Recipe("int8-weights"), Recipe("fp16"), Recipe("mixed"), Recipe("int8", activations="calibrated")]
)
def test_another_recipe_does_not(checkpoint: Checkpoint, cache: Path, recipe: Recipe) -> None:
    assert not serves(cache, checkpoint, recipe)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_openvino_runs_the_float32_graphs(checkpoint: Checkpoint, cache: Path, precision: Precision) -> None:
    [directory] = directories(cache)
    recipe = Recipe(precision, "openvino")

    assert ensure_artefacts(unreadable(checkpoint), recipe, cache) == Artefacts(directory, recipe)


def test_openvino_finds_ranges_itself_where_weights_are_in_int8(checkpoint: Checkpoint, tmp_path: Path) -> None:
    built = ensure_artefacts(checkpoint, Recipe("int8-weights"), tmp_path)
    recipe = Recipe("int8", "openvino")

    assert ensure_artefacts(unreadable(checkpoint), recipe, tmp_path) == Artefacts(built.directory, recipe)
    assert not serves(tmp_path, checkpoint, INT8)


@pytest.mark.parametrize("library", ["torch", "onnx", "onnxscript"])
def test_another_library_does_not(
    checkpoint: Checkpoint, cache: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setattr("asr.build.artefacts.version", lambda name: "99.0" if name == library else version(name))

    assert not serves(cache, checkpoint, FP32)


def test_other_code_does_not(
    checkpoint: Checkpoint, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = tmp_path / "model.py"
    changed.write_text(Path(asr.model.__file__).read_text() + "\n# changed\n")
    monkeypatch.setattr("asr.model.__file__", str(changed))

    assert not serves(cache, checkpoint, FP32)


@pytest.mark.parametrize(("installed", "fits"), [("0.47.0", True), (None, True), ("99.0", False)])
def test_modelopt_is_not_needed_to_serve(
    checkpoint: Checkpoint, cache: Path, monkeypatch: pytest.MonkeyPatch, installed: str | None, fits: bool
) -> None:
    """But where it is installed, what another version of it made is made again."""
    [directory] = directories(cache)
    manifest = Artefacts(directory, FP32).manifest
    made_of = manifest["made_of"]
    assert isinstance(made_of, dict)
    made_of |= {"precision": "fp16", "modelopt": "0.47.0"}
    (directory / MANIFEST).write_text(json.dumps(manifest))
    directory.rename(directory.with_name(directory.name.replace("fp32", "fp16")))
    monkeypatch.setattr("asr.build.artefacts._version_or_none", lambda name: installed)

    assert serves(cache, checkpoint, Recipe("fp16")) is fits


def test_another_kind_of_processor(checkpoint: Checkpoint, int8_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are signed or not by what the processor can do, and a cache may be shared."""
    exact = per_token.has_exact_u8s8()
    assert serves(int8_cache, checkpoint, INT8)
    assert serves(int8_cache, checkpoint, Recipe("int8", activations="per-token"))
    monkeypatch.setattr("asr.build.per_token.has_exact_u8s8", lambda: not exact)

    assert not serves(int8_cache, checkpoint, INT8)


def test_the_newest_that_is_intact(checkpoint: Checkpoint, cache: Path) -> None:
    [newest] = directories(cache)
    middle, oldest = copy_of(newest, "a", older_by_s=60), copy_of(newest, "b", older_by_s=120)
    for directory in (newest, middle, oldest):
        assert ensure_artefacts(unreadable(checkpoint), FP32, cache).directory == directory
        truncate(directory)
    with pytest.raises(CheckpointError):
        ensure_artefacts(unreadable(checkpoint), FP32, cache)


def test_a_name_with_brackets(checkpoint: Checkpoint, cache: Path) -> None:
    """Which a pattern of file names would take for a set of characters."""
    [directory] = directories(cache)
    directory.rename(directory.with_name(directory.name.replace("little", "[lit]tle")))

    assert serves(cache, replace(checkpoint, name="[lit]tle"), FP32)


# --- what fits, where a calibration set is needed


def write_noises(folder: Path) -> Path:
    """A calibration set of two half seconds."""
    folder.mkdir()
    for seed, name in enumerate(("one", "two")):
        noise = np.random.default_rng(seed).normal(0, 0.1, SAMPLE_RATE // 2)
        (folder / f"{name}.wav").write_bytes(wav(noise.astype(np.float32)))
    return folder


@pytest.fixture
def noises(tmp_path: Path) -> Path:
    return write_noises(tmp_path / "noises")


def calibrated(calibration: Path | None) -> Recipe:
    return Recipe("int8", activations="calibrated", calibration=calibration)


@pytest.fixture(scope="module")
def calibrated_cache(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated")
    ensure_artefacts(checkpoint, calibrated(write_noises(folder / "noises")), folder / "cache")
    return folder / "cache"


def test_any_calibration_set_fits_where_none_is_named(checkpoint: Checkpoint, calibrated_cache: Path) -> None:
    assert serves(calibrated_cache, checkpoint, calibrated(None))
    assert not serves(calibrated_cache, checkpoint, INT8)


def test_the_same_calibration_set_fits(checkpoint: Checkpoint, calibrated_cache: Path, noises: Path) -> None:
    """Wherever it is."""
    assert serves(calibrated_cache, checkpoint, calibrated(noises))


def change_a_sample(noises: Path) -> None:
    path = noises / "two.wav"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")


def remove_a_recording(noises: Path) -> None:
    (noises / "two.wav").unlink()


def say_what_is_said(noises: Path) -> None:
    lines = [json.dumps({"file": f"{name}.wav", "text": "Noise."}) for name in ("one", "two")]
    (noises / "manifest.jsonl").write_text("\n".join(lines))


@pytest.mark.parametrize("change", [change_a_sample, remove_a_recording, say_what_is_said])
def test_another_calibration_set_does_not(
    checkpoint: Checkpoint, calibrated_cache: Path, noises: Path, change: Callable[[Path], None]
) -> None:
    change(noises)

    assert not serves(calibrated_cache, checkpoint, calibrated(noises))


@pytest.mark.parametrize("use", [{"range_method": "entropy"}, {"trailing_silence": False}])
def test_another_use_of_the_calibration_set_does_not(
    checkpoint: Checkpoint, calibrated_cache: Path, noises: Path, use: dict[str, Any]
) -> None:
    assert not serves(calibrated_cache, checkpoint, replace(calibrated(noises), **use))


@pytest.mark.parametrize("recipe", [calibrated(None), Recipe("mixed")])
def test_what_needs_a_calibration_set_says_so(checkpoint: Checkpoint, tmp_path: Path, recipe: Recipe) -> None:
    with pytest.raises(ArtefactError, match=r"onnx (int8|mixed): needs a calibration set: .* --calibration FOLDER"):
        ensure_artefacts(checkpoint, recipe, tmp_path)

    assert directories(tmp_path) == []
