"""Text vocabularies, as bytes by token id, from any of the files that checkpoints carry them in."""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

from asr.errors import CheckpointError
from asr.tokenizer import text_token_count


def read_vocabulary(directory: Path, n_vocab: int) -> list[bytes]:
    """The text tokens of the model in this directory.

    Raises:
        CheckpointError: there is no vocabulary file, it is malformed, or it is not Whisper's.
    """
    text_token_count(n_vocab, str(directory))
    for name, read in READERS.items():
        path = directory / name
        if path.is_file():
            return _checked(path, read, n_vocab)
    raise CheckpointError(str(directory), f"holds no vocabulary ({', '.join(READERS)})")


def published_vocabulary(n_vocab: int) -> list[bytes] | None:
    """The vocabulary of that size which the `openai-whisper` package ships, if that package is installed."""
    spec = importlib.util.find_spec("whisper")
    if spec is None or spec.origin is None:
        return None
    name = "gpt2" if text_token_count(n_vocab) == 50256 else "multilingual"
    path = Path(spec.origin).parent / "assets" / f"{name}.tiktoken"
    return _checked(path, _read_tiktoken, n_vocab) if path.is_file() else None


def _checked(path: Path, read: Callable[[Path], Mapping[bytes, int]], n_vocab: int) -> list[bytes]:
    count = text_token_count(n_vocab)
    try:
        ids = read(path)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(str(path), f"is not a vocabulary ({error!r})") from error
    tokens = {token_id: token for token, token_id in ids.items() if token_id < count}
    if len(tokens) != count:
        raise CheckpointError(str(path), f"has {len(tokens)} of the {count} text tokens of a Whisper model")
    return [tokens[token_id] for token_id in range(count)]


def _read_json_list(path: Path) -> dict[bytes, int]:
    return _by_position(json.loads(path.read_text(encoding="utf-8")))


def _read_lines(path: Path) -> dict[bytes, int]:
    return _by_position(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))


def _read_json_map(path: Path) -> dict[bytes, int]:
    return _by_id(json.loads(path.read_text(encoding="utf-8")))


def _read_tokenizer_json(path: Path) -> dict[bytes, int]:
    return _by_id(json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"])


def _read_tiktoken(path: Path) -> dict[bytes, int]:
    pairs = (line.split() for line in path.read_text().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _by_position(tokens: Iterable[str]) -> dict[bytes, int]:
    return {_bytes_of(token): token_id for token_id, token in enumerate(tokens)}


def _by_id(tokens: Mapping[str, int]) -> dict[bytes, int]:
    return {_bytes_of(token): int(token_id) for token, token_id in tokens.items()}


def _bytes_of(token: str) -> bytes:
    """A token as GPT-2 writes it, one printable character for each byte; anything else (special tokens) as UTF-8."""
    table = _byte_of_character()
    if all(character in table for character in token):
        return bytes(table[character] for character in token)
    return token.encode()


@cache
def _byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-ins: printable Latin-1 for itself, the other bytes in order from U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


READERS: dict[str, Callable[[Path], dict[bytes, int]]] = {
    "vocabulary.json": _read_json_list,  # CTranslate2
    "vocabulary.txt": _read_lines,  # CTranslate2 before version 3
    "vocab.json": _read_json_map,  # Hugging Face
    "tokenizer.json": _read_tokenizer_json,  # Hugging Face tokenizers
}
