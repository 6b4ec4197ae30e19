"""The one form that every checkpoint format is read into."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from asr.errors import CheckpointError
from asr.model import Decoder, Dims, Encoder, build_modules
from asr.tokenizer import Tokenizer

Weights: TypeAlias = dict[str, Tensor]
"""Parameters in float32 under OpenAI's names (`encoder.blocks.0.attn.query.weight`, …)."""


@dataclass(frozen=True)
class Checkpoint:
    """A Whisper model on disk.

    name: for logs and file names; files: the weights files, in order; dims: sizes; vocabulary: bytes of every text
    token, by id; read_weights: reads all parameters, which the caller should do once and only when it has to.
    """

    name: str
    files: Sequence[Path]
    dims: Dims
    vocabulary: Sequence[bytes]
    read_weights: Callable[[], Weights]

    @cached_property
    def sha256(self) -> str:
        """Of the weights files one after another: what built artefacts are keyed by."""
        return sha256_of(self.files)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.vocabulary, self.dims.n_vocab)

    def modules(self) -> tuple[Encoder, Decoder]:
        """The network with its weights.

        Raises:
            CheckpointError: a parameter is missing, unknown or of another shape than `dims` says.
        """
        try:
            return build_modules(self.dims, self.read_weights())
        except RuntimeError as error:  # load_state_dict lists every parameter at fault
            raise CheckpointError(str(self.files[0]), f"parameters do not fit the architecture: {error}") from error


def sha256_of(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()
