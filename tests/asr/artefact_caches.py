"""Caches of graphs built of a little model, and what tests do with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from asr.build.recipe import Recipe
from asr.checkpoint import Checkpoint
from asr.checkpoint.normalised import Weights
from asr.errors import CheckpointError
from asr.model import Dims

DIMS = Dims(80, 1500, 16, 2, 1, 51_864, 448, 16, 2, 1)
GRAPHS = ["encoder.onnx", "decoder.onnx"]
FP32, INT8 = Recipe("fp32"), Recipe("int8")


def unreadable(checkpoint: Checkpoint) -> Checkpoint:
    """The same checkpoint, of which nothing can be built any more."""

    def read_weights() -> Weights:
        raise CheckpointError("little.pt", "cannot be read any more")

    return replace(checkpoint, read_weights=read_weights)


def directories(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir()]


def truncate(directory: Path) -> None:
    path = directory / "encoder.onnx"
    path.write_bytes(path.read_bytes()[:-1])
