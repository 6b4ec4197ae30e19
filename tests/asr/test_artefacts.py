"""The cache of built graphs: built once, kept while intact, never half there."""

from __future__ import annotations

import json
import multiprocessing
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from asr.build.artefacts import CACHE_VARIABLE, MANIFEST, Artefacts, default_cache_dir, ensure_artefacts, file_names
from asr.build.products import HEAD
from asr.checkpoint import Checkpoint, load_checkpoint
from asr.checkpoint.normalised import Weights, sha256_of
from asr.errors import ArtefactError, CheckpointError
from asr.sessions.onnxruntime import OnnxSession
from tests.asr.artefact_caches import FP32, GRAPHS, INT8, directories, truncate, unreadable

PATIENCE_S = 120
barrier: Barrier  # of a process that builds


def assert_whole(artefacts: Artefacts) -> None:
    """Both graphs are there and load, and nothing else is."""
    manifest = json.loads((artefacts.directory / MANIFEST).read_text())

    assert sorted(path.name for path in artefacts.directory.iterdir()) == sorted([*GRAPHS, MANIFEST])
    assert manifest["sha256"] == {name: sha256_of([artefacts.directory / name]) for name in GRAPHS}
    for path in (artefacts.encoder, artefacts.decoder):
        OnnxSession(path, threads=1)


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

    assert artefacts == Artefacts(directory, FP32)
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
    manifest = Artefacts(directory, INT8).manifest
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

    assert artefacts == Artefacts(directory, FP32)
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


# --- where


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv(CACHE_VARIABLE, "~/graphs")
    assert default_cache_dir() == Path("/home/somebody/graphs")
    monkeypatch.delenv(CACHE_VARIABLE)
    assert default_cache_dir().name == "rayscribe"
