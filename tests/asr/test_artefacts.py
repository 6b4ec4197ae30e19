"""The cache of built graphs: built once, kept while intact, never half there."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

import asr.build.artefacts
from asr.build.__main__ import main
from asr.build.artefacts import CACHE_VARIABLE, GRAPHS, MANIFEST, Artefacts, default_cache_dir, ensure_artefacts
from asr.checkpoint import Checkpoint, load_checkpoint
from asr.checkpoint.normalised import Weights, sha256_of
from asr.errors import ArtefactError, CheckpointError
from asr.model import Dims
from asr.sessions.onnxruntime import OnnxSession
from tests.asr.reference import random_weights
from tests.asr.writers import write_openai

PATIENCE_S = 120
barrier: Barrier  # of a process that builds

DIMS = Dims(80, 1500, 16, 2, 1, 51_864, 448, 16, 2, 1)


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
    ensure_artefacts(checkpoint, "fp32", cache)
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
    artefacts = ensure_artefacts(replace(checkpoint, read_weights=read_weights), "int8", cache)
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
    artefacts = ensure_artefacts(unreadable(checkpoint), "fp32", cache)

    assert artefacts == Artefacts(directory)
    assert_whole(artefacts)
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in directory.iterdir()} == {
        path: (status.st_ino, status.st_mtime_ns) for path, status in before.items()
    }


def test_the_name_says_what_it_is(checkpoint: Checkpoint, cache: Path) -> None:
    artefacts = ensure_artefacts(checkpoint, "fp32", cache)
    manifest = json.loads((artefacts.directory / MANIFEST).read_text())

    assert artefacts.directory.name.startswith("little-fp32-")
    assert manifest["precision"] == "fp32"
    assert manifest["checkpoint"] == {"name": "little", "sha256": checkpoint.sha256}
    assert set(manifest["libraries"]) == {"torch", "onnx", "onnxscript"}


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
    (directory / MANIFEST).write_text(json.dumps({"sha256": {"encoder.onnx": sha256_of([directory / "encoder.onnx"])}}))


def put_a_list_in_the_manifest(directory: Path) -> None:
    (directory / MANIFEST).write_text("[]")


DAMAGES = [
    truncate,
    change_a_byte,
    lose_the_decoder,
    scribble_on_the_manifest,
    forget_a_checksum,
    put_a_list_in_the_manifest,
    shutil.rmtree,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed(checkpoint: Checkpoint, cache: Path, damage: Callable[[Path], None]) -> None:
    """What is damaged is never used, even where it cannot be replaced."""
    [directory] = directories(cache)
    damage(directory)

    with pytest.raises(CheckpointError, match="cannot be read any more"):
        ensure_artefacts(unreadable(checkpoint), "fp32", cache)
    assert directories(cache) == []


def test_damage_is_repaired(checkpoint: Checkpoint, cache: Path) -> None:
    [directory] = directories(cache)
    truncate(directory)
    (directory / "left over").touch()
    artefacts = ensure_artefacts(checkpoint, "fp32", cache)

    assert artefacts == Artefacts(directory)
    assert_whole(artefacts)


# --- never half there


def test_a_failing_build_leaves_nothing(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        ensure_artefacts(unreadable(checkpoint), "fp32", tmp_path)

    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_a_build_that_fails_halfway_leaves_nothing(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("asr.build.export.export_decoder", fails)
    with pytest.raises(KeyboardInterrupt):
        ensure_artefacts(checkpoint, "fp32", tmp_path)

    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_one(checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = tmp_path / "a file"
    path.touch()
    with pytest.raises(ArtefactError, match="cannot be built") as caught:
        ensure_artefacts(checkpoint, "fp32", path)

    assert str(path) in str(caught.value)


# --- the key


def directory_of(checkpoint: Checkpoint, precision: str, cache: Path) -> Path:
    """Where a build would go, found by one that fails."""
    with pytest.raises(CheckpointError):
        ensure_artefacts(unreadable(checkpoint), precision, cache)
    [lock] = cache.glob("*.lock")
    lock.unlink()
    return lock.with_suffix("")


def test_the_same_content_has_the_same_key(checkpoint: Checkpoint, weights_file: Path, tmp_path: Path) -> None:
    copy = shutil.copy(weights_file, tmp_path / "little.pt")
    cache = tmp_path / "cache"

    assert directory_of(load_checkpoint(copy), "fp32", cache) == directory_of(checkpoint, "fp32", cache)


def test_another_precision_has_another_directory(checkpoint: Checkpoint, tmp_path: Path) -> None:
    assert directory_of(checkpoint, "int8", tmp_path) != directory_of(checkpoint, "fp32", tmp_path)
    assert directory_of(checkpoint, "int8", tmp_path).name.startswith("little-int8-")


def test_other_weights_have_another_key(checkpoint: Checkpoint, tmp_path: Path) -> None:
    other = random_weights(DIMS)
    other["encoder.conv1.bias"][0] += 1
    write_openai(tmp_path / "little.pt", DIMS, other)
    cache = tmp_path / "cache"

    assert directory_of(load_checkpoint(tmp_path / "little.pt"), "fp32", cache) != directory_of(
        checkpoint, "fp32", cache
    )


@pytest.mark.parametrize("library", ["torch", "onnx", "onnxscript"])
def test_another_library_has_another_key(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    before = directory_of(checkpoint, "fp32", tmp_path)
    monkeypatch.setattr("asr.build.artefacts.version", lambda name: "99.0" if name == library else version(name))

    assert directory_of(checkpoint, "fp32", tmp_path) != before


def test_other_code_has_another_key(checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = directory_of(checkpoint, "fp32", tmp_path / "cache")
    changed = tmp_path / "model.py"
    changed.write_text(Path(asr.model.__file__).read_text() + "\n# changed\n")
    monkeypatch.setattr("asr.model.__file__", str(changed))

    assert directory_of(checkpoint, "fp32", tmp_path / "cache") != before


def test_another_kind_of_processor_has_another_key(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are signed or not by what the processor can do, and a cache may be shared."""
    before = directory_of(checkpoint, "int8", tmp_path)
    exact = asr.build.quantize.has_exact_u8s8()
    monkeypatch.setattr("asr.build.quantize.has_exact_u8s8", lambda: not exact)

    assert directory_of(checkpoint, "int8", tmp_path) != before


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


def test_the_command_prints_the_directory(
    weights_file: Path, checkpoint: Checkpoint, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", str(weights_file), "--precision", "fp32", "--cache", str(cache)]

    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{ensure_artefacts(checkpoint, 'fp32', cache).directory}\n"


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
