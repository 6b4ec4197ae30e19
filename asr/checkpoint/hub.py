"""Checkpoints from the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from asr.errors import CheckpointNotFoundError

FILES = [
    "config.json",
    "model.safetensors*",
    "model-*.safetensors",
    "vocab*.json",
    "vocabulary.*",
    "tokenizer.json",
    "model.bin",
]


def download(reference: str) -> Path:
    """A local directory with the model `reference`: an "organisation/name", or one of OpenAI's model names.

    Raises:
        CheckpointNotFoundError: the hub has no such model or cannot be reached, or `huggingface_hub` is not installed.
    """
    repository = reference if "/" in reference else f"openai/whisper-{reference}"
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError as error:
        raise CheckpointNotFoundError(
            reference, "is neither a path nor an installed weights package; for the hub, install rayscribe[hub]"
        ) from error
    try:
        return Path(snapshot_download(repository, allow_patterns=FILES))
    except (HfHubHTTPError, RepositoryNotFoundError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise CheckpointNotFoundError(reference, f"cannot be had from the hub as {repository} ({error})") from error
