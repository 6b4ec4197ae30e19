"""The cache of built graphs: built on first use by one process, checked whenever it is used, rebuilt when damaged.

    <cache>/<model>-<precision>-<key>/encoder.onnx, decoder.onnx, manifest.json

The key covers everything that the content depends on: the weights, the precision, the processor's arithmetic, the code
that builds, the libraries that export. A directory appears under its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import onnx
from filelock import FileLock
from platformdirs import user_cache_path
from tqdm import tqdm

import asr.model
from asr.build import export, quantize
from asr.checkpoint.normalised import Checkpoint, sha256_of
from asr.errors import ArtefactError

CACHE_VARIABLE = "RAYSCRIBE_CACHE"
GRAPHS = ("encoder.onnx", "decoder.onnx")
MANIFEST = "manifest.json"
BUILDERS = (asr.model, export, quantize)
LIBRARIES = ("torch", "onnx", "onnxscript")


@dataclass(frozen=True)
class Artefacts:
    """A complete, checked directory of graphs."""

    directory: Path

    @property
    def encoder(self) -> Path:
        return self.directory / GRAPHS[0]

    @property
    def decoder(self) -> Path:
        return self.directory / GRAPHS[1]


def ensure_artefacts(checkpoint: Checkpoint, precision: str, cache_dir: Path | None = None) -> Artefacts:
    """The graphs of this checkpoint in this precision ("fp32" or "int8"), built now if the cache lacks them.

    Processes that ask at the same time build once: the others wait.

    Raises:
        CheckpointError: the weights cannot be read.
        ArtefactError: the cache cannot be written.
    """
    cache = cache_dir or default_cache_dir()
    key = _key(checkpoint, precision)
    directory = cache / f"{checkpoint.name}-{precision}-{key}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{directory}.lock"):
            if not _is_intact(directory):
                # What is there is damaged, or left of a build that was killed.
                for remains in (directory, *cache.glob(f".{directory.name}-*")):
                    shutil.rmtree(remains, ignore_errors=True)
                _build(checkpoint, precision, directory)
    except OSError as error:
        raise ArtefactError(str(directory), f"cannot be built ({error})") from error
    return Artefacts(directory)


def default_cache_dir() -> Path:
    configured = os.environ.get(CACHE_VARIABLE)
    return Path(configured).expanduser() if configured else user_cache_path("rayscribe")


def _key(checkpoint: Checkpoint, precision: str) -> str:
    digest = hashlib.sha256(f"{checkpoint.sha256} {precision} {quantize.has_exact_u8s8()}".encode())
    for library in LIBRARIES:
        digest.update(f" {library} {version(library)}".encode())
    for module in BUILDERS:
        assert module.__file__ is not None
        digest.update(Path(module.__file__).read_bytes())
    return digest.hexdigest()[:16]


def _is_intact(directory: Path) -> bool:
    try:
        manifest = json.loads((directory / MANIFEST).read_text())
        return all(sha256_of([directory / name]) == manifest["sha256"][name] for name in GRAPHS)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _build(checkpoint: Checkpoint, precision: str, directory: Path) -> None:
    steps = ["read weights", "export encoder", "export decoder", *(["quantise"] if precision == "int8" else [])]
    with _appearing_at(directory) as building, tqdm(total=len(steps) + 1, file=sys.stderr, unit="step") as progress:

        def done(step: str) -> None:
            progress.set_description(f"building {checkpoint.name} {precision}: {step}")
            progress.update()

        progress.set_description(f"building {checkpoint.name} {precision}")
        encoder, decoder = checkpoint.modules()
        done("weights read")
        export.export_encoder(encoder, checkpoint.dims, building / GRAPHS[0])
        done("encoder exported")
        export.export_decoder(decoder, checkpoint.dims, building / GRAPHS[1])
        done("decoder exported")
        if precision == "int8":
            for name in GRAPHS:
                quantized = quantize.quantize_matmuls(
                    onnx.load(building / name), signed_weights=quantize.has_exact_u8s8()
                )
                onnx.save_model(quantized, building / name)
            done("quantised")
        _write_manifest(checkpoint, precision, building)
        done("checked")


def _write_manifest(checkpoint: Checkpoint, precision: str, directory: Path) -> None:
    manifest = {
        "checkpoint": {"name": checkpoint.name, "sha256": checkpoint.sha256},
        "precision": precision,
        "libraries": {library: version(library) for library in LIBRARIES},
        "sha256": {name: sha256_of([directory / name]) for name in GRAPHS},
    }
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


@contextlib.contextmanager
def _appearing_at(directory: Path) -> Iterator[Path]:
    """A new directory that takes its name only when the block has succeeded, and vanishes otherwise."""
    building = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        yield building
        building.chmod(0o755)
        building.rename(directory)
    finally:
        shutil.rmtree(building, ignore_errors=True)
