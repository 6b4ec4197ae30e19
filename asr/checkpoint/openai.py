"""OpenAI's own checkpoints: one `.pt` file with `dims` and `model_state_dict`, and no vocabulary."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from asr.checkpoint import embedded
from asr.checkpoint.normalised import Checkpoint, Weights
from asr.checkpoint.vocabulary import READERS, published_vocabulary, read_vocabulary
from asr.errors import CheckpointError, UnsupportedArchitectureError
from asr.model import Dims
from asr.tokenizer import text_token_count


def read_openai(path: Path) -> Checkpoint:
    """Open a `.pt` file. Its vocabulary, one of the two that OpenAI published, comes from a vocabulary file beside it,
    from the `openai-whisper` package, or from the installed weights packages."""
    content = _load(path)
    try:
        dims = Dims(**content["dims"])
        state = dict(content["model_state_dict"])
    except (KeyError, TypeError, ValueError) as error:
        raise UnsupportedArchitectureError(str(path), f"is no OpenAI Whisper checkpoint ({error})") from error
    return Checkpoint(
        name=path.stem,
        files=[path],
        dims=dims,
        vocabulary=_vocabulary(path, dims.n_vocab),
        read_weights=lambda: _normalise(state),
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
        raise CheckpointError(str(path), f"is truncated or no PyTorch checkpoint ({error})") from error
    if not isinstance(content, dict):
        raise UnsupportedArchitectureError(str(path), "is no OpenAI Whisper checkpoint")
    return content


def _normalise(state: dict[str, torch.Tensor]) -> Weights:
    return {name: value.to(torch.float32) for name, value in state.items()}


def _vocabulary(path: Path, n_vocab: int) -> Sequence[bytes]:
    text_token_count(n_vocab, str(path))
    if any((path.parent / name).is_file() for name in READERS):
        return read_vocabulary(path.parent, n_vocab)
    vocabulary = published_vocabulary(n_vocab) or embedded.vocabulary(n_vocab)
    if vocabulary is None:
        raise CheckpointError(
            str(path), "needs a vocabulary: put vocab.json beside it, or install openai-whisper or a weights package"
        )
    return vocabulary
