"""The cache of built graphs: built on first use by one process, checked whenever it is used, rebuilt when damaged.

    <cache>/<model>-<backend>-<precision>-<key>/encoder.onnx, decoder.onnx (or .plan), manifest.json

The manifest says what everything in the directory was made from: the weights, the recipe, the calibration set, the code
and the libraries, and for a TensorRT plan its library and GPU. A directory is used if it is intact and its manifest has
all that is wanted. It appears under its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from filelock import FileLock
from platformdirs import user_cache_path
from tqdm import tqdm

import asr.build
import asr.model
from asr.build import builder, per_token
from asr.build.calibration import read_recordings
from asr.build.plan import NATIVE
from asr.build.recipe import GraphBackend, Recipe, TensorRTSettings
from asr.checkpoint.normalised import Checkpoint, sha256_of
from asr.errors import ArtefactError
from asr.processors import usable_cpus
from asr.tensorrt_library import load_tensorrt

CACHE_VARIABLE = "RAYSCRIBE_CACHE"
MANIFEST = "manifest.json"
LIBRARIES = ("torch", "onnx", "onnxscript")
KEY = "[0-9a-f]" * 16  # as a pattern of file names


@dataclass(frozen=True)
class Artefacts:
    """A complete, checked directory of graphs or plans, and the recipe that they are to run by."""

    directory: Path
    recipe: Recipe

    @property
    def encoder(self) -> Path:
        return self.directory / file_names(self.recipe.graphs.backend)[0]

    @property
    def decoder(self) -> Path:
        return self.directory / file_names(self.recipe.graphs.backend)[1]

    @property
    def manifest(self) -> dict[str, object]:
        manifest: dict[str, object] = json.loads((self.directory / MANIFEST).read_text())
        return manifest


def ensure_artefacts(checkpoint: Checkpoint, recipe: Recipe, cache_dir: Path | None = None) -> Artefacts:
    """The graphs of this checkpoint after this recipe, built now if the cache lacks them.

    Processes that ask at the same time build once: the others wait.

    Raises:
        CheckpointError: the weights cannot be read.
        ArtefactError: the cache cannot be written, or the graphs cannot be built.
    """
    cache, graphs = cache_dir or default_cache_dir(), recipe.graphs
    name = f"{checkpoint.name}-{graphs.backend}-{graphs.precision}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{name}.lock"):
            wanted = _properties(checkpoint, graphs)
            directory = _find(cache, name, wanted, graphs.backend) or _build(checkpoint, graphs, cache, name, wanted)
    except OSError as error:
        raise ArtefactError(str(cache / name), f"cannot be built ({error})") from error
    return Artefacts(directory, recipe)


def default_cache_dir() -> Path:
    configured = os.environ.get(CACHE_VARIABLE)
    return Path(configured).expanduser() if configured else user_cache_path("rayscribe")


def file_names(backend: GraphBackend) -> list[str]:
    return [f"{graph}{builder.SUFFIXES[backend]}" for graph in builder.GRAPHS]


def _find(cache: Path, name: str, wanted: Mapping[str, object], backend: GraphBackend) -> Path | None:
    """The newest intact directory that has all that is wanted."""
    wanted = json.loads(json.dumps(wanted))  # as a manifest has it: its tuples are lists
    for directory in sorted(
        cache.glob(f"{glob.escape(name)}-{KEY}"), key=lambda path: path.stat().st_mtime, reverse=True
    ):
        try:
            manifest = json.loads((directory / MANIFEST).read_text())
            made_of, sums = manifest["made_of"], manifest["sha256"]
            if all(made_of.get(key) == value for key, value in wanted.items()) and all(
                sha256_of([directory / file]) == sums[file] for file in file_names(backend)
            ):
                return directory
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # damaged
    return None


def _properties(checkpoint: Checkpoint, recipe: Recipe) -> dict[str, object]:
    """What a directory must have been made from to serve for this recipe."""
    properties: dict[str, object] = {
        "weights": checkpoint.sha256,
        "precision": recipe.precision,
        "backend": recipe.backend,
        "code": _code(),
        **{library: version(library) for library in LIBRARIES},
    }
    if recipe.quantizes_activations:
        properties["activations"] = recipe.resolved_activations
        if recipe.resolved_activations == "per-token":
            properties["signed_weights"] = per_token.has_exact_u8s8()
    if recipe.is_half and (modelopt := _version_or_none("nvidia-modelopt")):  # needed to build, not to serve
        properties["modelopt"] = modelopt
    if recipe.needs_calibration and recipe.calibration is not None:
        properties["calibration"] = _calibration_digest(recipe)
    if recipe.backend == "tensorrt":
        properties |= _tensorrt_properties(recipe.tensorrt)
    return properties


def _tensorrt_properties(settings: TensorRTSettings | None) -> dict[str, object]:
    library = load_tensorrt()
    properties: dict[str, object] = {
        "library": library.name,
        "library_version": library.version,
        "system": platform.system(),
        "target": _compute_capability(settings.target if settings else NATIVE),
    }
    return properties | ({"plan": asdict(settings)} if settings else {})


def _compute_capability(target: str) -> str:
    """Such as "sm75"; of this machine's GPU for "native"."""
    if target == NATIVE and torch.cuda.is_available():
        return "sm{}{}".format(*torch.cuda.get_device_capability())
    return target


def _calibration_digest(recipe: Recipe) -> str:
    """Of the recordings, what is said to be in them, and how they are used."""
    assert recipe.calibration is not None
    increase = recipe.max_error_increase if recipe.precision == "mixed" else None
    used = (recipe.range_method, recipe.trailing_silence, increase)
    digest = hashlib.sha256(repr(used).encode())
    for recording in read_recordings(recipe.calibration):
        digest.update(repr((recording.path.name, recording.text, recording.language)).encode())
        digest.update(recording.path.read_bytes())
    return digest.hexdigest()


def _code() -> str:
    """Of the modules that shape what is built."""
    assert asr.model.__file__ is not None
    assert asr.build.__file__ is not None
    modules = sorted(Path(asr.build.__file__).parent.glob("*.py"))
    digest = hashlib.sha256()
    for path in (Path(asr.model.__file__), *modules):
        if path.stem not in ("__main__", "artefacts"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _version_or_none(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _build(checkpoint: Checkpoint, recipe: Recipe, cache: Path, name: str, wanted: Mapping[str, object]) -> Path:
    made_of = dict(wanted)
    if recipe.backend == "tensorrt":
        made_of |= {"plan": asdict(recipe.tensorrt or TensorRTSettings())}
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
    directory = cache / f"{name}-{key}"
    # What is there is damaged, or left of a build that was killed.
    for remains in (directory, *cache.glob(f".{glob.escape(name)}-{KEY}-*")):
        shutil.rmtree(remains, ignore_errors=True)
    with _appearing_at(directory) as building, tqdm(file=sys.stderr, unit="step", desc=f"building {name}") as progress:

        def done(step: str) -> None:
            progress.set_postfix_str(step)
            progress.update()

        built = builder.build(checkpoint, recipe, building, threads=usable_cpus(), done=done)
        manifest = {
            "model": checkpoint.name,
            "made_of": made_of,
            "graphs": [asdict(summary) for summary in built.graphs],
            "placement": {graph: sorted(names) for graph, names in built.placement.items()},
            "choice": built.choice.as_json() if built.choice else None,
            "sha256": {file: sha256_of([building / file]) for file in file_names(recipe.backend)},
        }
        (building / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return directory


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
