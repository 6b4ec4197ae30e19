"""Whisper checkpoints of every published format, read into one normalised form.

    load_checkpoint("base")                  a name: the installed weights package, else the hub
    load_checkpoint("models/whisper-small")  a directory: CTranslate2 (model.bin) or Hugging Face (safetensors)
    load_checkpoint("small.pt")              a file: OpenAI
    load_checkpoint("org/whisper-finetune")  a Hugging Face hub id

Each format has a module with `read_*(…) -> Checkpoint`; which one applies is decided here.
"""

from __future__ import annotations

from pathlib import Path

from asr.checkpoint import ctranslate2, embedded, hub, huggingface, openai
from asr.checkpoint.normalised import Checkpoint
from asr.errors import CheckpointNotFoundError, UnsupportedArchitectureError

__all__ = ["Checkpoint", "load_checkpoint"]


def load_checkpoint(reference: str | Path) -> Checkpoint:
    """Find and open a checkpoint; weights are read only when asked for.

    Raises:
        CheckpointNotFoundError: nothing of this name at the path, among the weights packages or on the hub.
        ChecksumMismatchError: an embedded weights file is not the pinned one.
        UnsupportedArchitectureError: the checkpoint is not a Whisper model.
        CheckpointError: a file is missing, truncated or malformed.
    """
    path = Path(reference).expanduser()
    if path.exists():
        return _read_path(path)
    if embedded.is_installed(str(reference)):
        return embedded.read_embedded(str(reference))
    if looks_like_path(str(reference)):
        raise CheckpointNotFoundError(str(reference), "no such file or directory")
    return _read_path(hub.download(str(reference)))


def looks_like_path(reference: str) -> bool:
    return reference.startswith((".", "/", "~")) or reference.count("/") > 1 or reference.endswith((".pt", ".bin"))


def _read_path(path: Path) -> Checkpoint:
    if path.is_file():
        return openai.read_openai(path)
    if (path / "model.bin").is_file():
        return ctranslate2.read_ctranslate2(path)
    if (path / "config.json").is_file():
        return huggingface.read_huggingface(path)
    raise UnsupportedArchitectureError(
        str(path), "holds neither model.bin (CTranslate2) nor config.json and safetensors (Hugging Face)"
    )
