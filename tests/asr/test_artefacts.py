"""The cache of built graphs: built once, kept while intact, never half there."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asr.model
from asr.build import per_token
from asr.build.__main__ import main
from asr.build.artefacts import CACHE_VARIABLE, MANIFEST, Artefacts, default_cache_dir, ensure_artefacts, file_names
from asr.build.products import HEAD
from asr.build.recipe import Recipe
from asr.checkpoint import Checkpoint, load_checkpoint
from asr.checkpoint.normalised import Weights, sha256_of
from asr.errors import ArtefactError, CheckpointError
from asr.features import SAMPLE_RATE
from asr.model import Dims
from asr.sessions.onnxruntime import OnnxSession
from tests.asr.reference import random_weights
from tests.asr.writers import write_openai
from tests.audio_files import wav

PATIENCE_S = 120
barrier: Barrier  # of a process that builds

DIMS = Dims(80, 1500, 16, 2, 1, 51_864, 448, 16, 2, 1)
GRAPHS = ["encoder.onnx", "decoder.onnx"]
FP32, INT8 = Recipe("fp32"), Recipe("int8")


@pytest.fixture(scope="module")
def weights_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer that was never trained: 4 MB, built in seconds."""
    path = tmp_path_factory.mktemp("model") / "little.pt"
    write_openai(path, DIMS, random_weights(DIMS))
    return path


@pytest.fixture(scope="module")
def checkpoint(weights_file: Path) -> Checkpoint:
    return load_checkpoint(weights_file)


@pytest.fixture(scope="module")
def built_cache(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    ensure_artefacts(checkpoint, FP32, cache)
    return cache


@pytest.fixture(scope="module")
def int8_cache(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    ensure_artefacts(checkpoint, INT8, cache)
    return cache


@pytest.fixture
def cache(built_cache: Path, tmp_path: Path) -> Path:
    """A cache of one's own that has the graphs in fp32."""
    return shutil.copytree(built_cache, tmp_path / "cache")


def unreadable(checkpoint: Checkpoint) -> Checkpoint:
    """The same checkpoint, of which nothing can be built any more."""

    def read_weights() -> Weights:
        raise CheckpointError("little.pt", "cannot be read any more")

    return replace(checkpoint, read_weights=read_weights)


def assert_whole(artefacts: Artefacts) -> None:
    """Both graphs are there and load, and nothing else is."""
    manifest = json.loads((artefacts.directory / MANIFEST).read_text())

    assert sorted(path.name for path in artefacts.directory.iterdir()) == sorted([*GRAPHS, MANIFEST])
    assert manifest["sha256"] == {name: sha256_of([artefacts.directory / name]) for name in GRAPHS}
    for path in (artefacts.encoder, artefacts.decoder):
        OnnxSession(path, threads=1)


def directories(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir()]


# --- built once


def meet(together: Barrier) -> None:
    """Give a new process what it needs to start at the same moment as another."""
    global barrier
    barrier = together


def build(weights: Path, cache: Path) -> tuple[Artefacts, int, int]:
    """→ the graphs, the encoder's inode, and how often the weights were read for it, which a build does once."""
    checkpoint = load_checkpoint(weights)
    reads: list[None] = []

    def read_weights() -> Weights:
        reads.append(None)
        return checkpoint.read_weights()

    barrier.wait(PATIENCE_S)
    artefacts = ensure_artefacts(replace(checkpoint, read_weights=read_weights), INT8, cache)
    return artefacts, artefacts.encoder.stat().st_ino, len(reads)


def test_processes_that_start_together_build_once(weights_file: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    cache = tmp_path / "cache"
    with ProcessPoolExecutor(2, context, initializer=meet, initargs=(context.Barrier(2),)) as processes:
        first, second = [processes.submit(build, weights_file, cache) for _ in range(2)]
        artefacts, inode, reads = first.result(PATIENCE_S)
        other_artefacts, other_inode, other_reads = second.result(PATIENCE_S)

    assert (artefacts, inode) == (other_artefacts, other_inode)
    assert sorted([reads, other_reads]) == [0, 1]
    assert directories(cache) == [artefacts.directory]
    assert_whole(artefacts)


def test_what_was_built_is_used_again(checkpoint: Checkpoint, cache: Path) -> None:
    [directory] = directories(cache)
    before = {path: path.stat() for path in directory.iterdir()}
    artefacts = ensure_artefacts(unreadable(checkpoint), FP32, cache)

    assert artefacts == Artefacts(directory)
    assert_whole(artefacts)
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in directory.iterdir()} == {
        path: (status.st_ino, status.st_mtime_ns) for path, status in before.items()
    }


def test_the_name_and_the_manifest_say_what_it_is(checkpoint: Checkpoint, cache: Path) -> None:
    artefacts = ensure_artefacts(checkpoint, FP32, cache)
    made_of = artefacts.manifest["made_of"]

    assert re.fullmatch(r"little-onnx-fp32-[0-9a-f]{16}", artefacts.directory.name)
    assert [artefacts.encoder.name, artefacts.decoder.name] == file_names("onnx") == GRAPHS
    assert artefacts.manifest["model"] == "little"
    assert isinstance(made_of, dict)
    assert made_of.pop("code")
    assert made_of == {
        "weights": checkpoint.sha256,
        "precision": "fp32",
        "backend": "onnx",
        **{library: version(library) for library in ("torch", "onnx", "onnxscript")},
    }


def test_the_manifest_says_what_was_built(int8_cache: Path) -> None:
    [directory] = directories(int8_cache)
    manifest = Artefacts(directory).manifest
    encoder, decoder = [
        {
            "graph": graph,
            "precision": "int8",
            "quantized": products,
            "products": products,
            "bytes": (directory / file).stat().st_size,
            "graph_sha256": sha256_of([directory / file]),
        }
        for graph, file, products in zip(("encoder", "decoder"), GRAPHS, (8, 9), strict=True)
    ]
    graphs, placement = manifest["graphs"], manifest["placement"]

    assert isinstance(graphs, list)
    assert all(graph.pop("seconds") >= 0 for graph in graphs)
    assert graphs == [encoder, decoder]
    assert isinstance(placement, dict)
    assert {graph: len(names) for graph, names in placement.items()} == {"encoder": 8, "decoder": 9}
    assert {"blocks.0.attn.value", HEAD} <= set(placement["decoder"])
    assert manifest["choice"] is None


# --- rebuilt when damaged


def truncate(directory: Path) -> None:
    path = directory / "encoder.onnx"
    path.write_bytes(path.read_bytes()[:-1])


def change_a_byte(directory: Path) -> None:
    content = bytearray((directory / "decoder.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (directory / "decoder.onnx").write_bytes(content)


def lose_the_decoder(directory: Path) -> None:
    (directory / "decoder.onnx").unlink()


def scribble_on_the_manifest(directory: Path) -> None:
    (directory / MANIFEST).write_bytes(b"\xff\x00 not JSON")


def forget_a_checksum(directory: Path) -> None:
    manifest = json.loads((directory / MANIFEST).read_text())
    del manifest["sha256"]["decoder.onnx"]
    (directory / MANIFEST).write_text(json.dumps(manifest))


def forget_what_it_was_made_of(directory: Path) -> None:
    manifest = json.loads((directory / MANIFEST).read_text())
    del manifest["made_of"]
    (directory / MANIFEST).write_text(json.dumps(manifest))


def put_a_list_in_the_manifest(directory: Path) -> None:
    (directory / MANIFEST).write_text("[]")


DAMAGES = [
    truncate,
    change_a_byte,
    lose_the_decoder,
    scribble_on_the_manifest,
    forget_a_checksum,
    forget_what_it_was_made_of,
    put_a_list_in_the_manifest,
    shutil.rmtree,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed(checkpoint: Checkpoint, cache: Path, damage: Callable[[Path], None]) -> None:
    """What is damaged is never used, even where it cannot be replaced."""
    [directory] = directories(cache)
    damage(directory)

    with pytest.raises(CheckpointError, match="cannot be read any more"):
        ensure_artefacts(unreadable(checkpoint), FP32, cache)
    assert directories(cache) == []


def test_damage_is_repaired(checkpoint: Checkpoint, cache: Path) -> None:
    [directory] = directories(cache)
    truncate(directory)
    (directory / "left over").touch()
    artefacts = ensure_artefacts(checkpoint, FP32, cache)

    assert artefacts == Artefacts(directory)
    assert_whole(artefacts)


# --- never half there


def test_what_a_killed_build_left_is_removed(checkpoint: Checkpoint, cache: Path) -> None:
    """By the next one that has the same lock; another may be at work elsewhere."""
    left, elsewhere = (cache / f".little-onnx-{name}-{'a' * 16}-b_8x" for name in ("fp32", "int8"))
    for directory in (left, elsewhere):
        directory.mkdir()
        (directory / "encoder.onnx").touch()
    [damaged] = [path for path in directories(cache) if path not in (left, elsewhere)]
    truncate(damaged)
    with pytest.raises(CheckpointError):
        ensure_artefacts(unreadable(checkpoint), FP32, cache)

    assert not left.exists()
    assert elsewhere.exists()


def test_a_failing_build_leaves_nothing(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        ensure_artefacts(unreadable(checkpoint), FP32, tmp_path)

    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_a_build_that_fails_halfway_leaves_nothing(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("asr.build.export.export_decoder", fails)
    with pytest.raises(KeyboardInterrupt):
        ensure_artefacts(checkpoint, FP32, tmp_path)

    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_one(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "a file"
    path.touch()
    with pytest.raises(ArtefactError, match="cannot be built") as caught:
        ensure_artefacts(checkpoint, FP32, path)

    assert str(path) in str(caught.value)


# --- what fits


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
    manifest = Artefacts(directory).manifest
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


# --- where


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv(CACHE_VARIABLE, "~/graphs")
    assert default_cache_dir() == Path("/home/somebody/graphs")
    monkeypatch.delenv(CACHE_VARIABLE)
    assert default_cache_dir().name == "rayscribe"


# --- the command


def test_the_command_prints_what_was_built(weights_file: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [directory] = directories(cache)
    mib = [f"{(directory / file).stat().st_size / 2**20:.1f}" for file in GRAPHS]

    assert main(["--model", str(weights_file), "--precision", "fp32", "--cache", str(cache)]) == 0
    printed, empty, *table = capsys.readouterr().out.splitlines()
    assert (printed, empty) == (str(directory), "")
    assert table[:2] == ["| graph | precision | products in int8 | MiB | built in |", "|---|---|---:|---:|---:|"]
    for row, start in zip(
        table[2:], (f"| encoder | fp32 | 0 of 8 | {mib[0]} |", f"| decoder | fp32 | 0 of 9 | {mib[1]} |"), strict=True
    ):
        assert re.fullmatch(re.escape(start) + r" \d+\.\d s \|", row)


def test_the_command_prints_the_manifest(weights_file: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [directory] = directories(cache)

    assert main(["--model", str(weights_file), "--precision", "fp32", "--output", str(cache), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == Artefacts(directory).manifest


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "./no such model.pt", "--cache", str(tmp_path)]) == 1

    out, error = capsys.readouterr()
    assert out == ""
    assert error == "error: ./no such model.pt: no such file or directory\n"
    assert list(tmp_path.iterdir()) == []


def test_the_command_knows_its_precisions(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--precision", "int4"])

    assert caught.value.code == 2
    assert "int4" in capsys.readouterr().err
