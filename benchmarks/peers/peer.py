"""What every system that is compared has in common: clips go in, texts come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

from asr.errors import AsrError
from asr.scheduler import BatchLimits
from benchmarks.speech_set import Clip

BATCH = BatchLimits().rows
"""Rows in a batch of the peers that have any: as many as in Rayscribe's."""

Transcribe: TypeAlias = Callable[[Sequence[Clip]], Sequence[str | AsrError]]
"""Clips → their texts, or what each failed with."""
Load: TypeAlias = Callable[[str, Path | None], AbstractContextManager[Transcribe]]
"""Model name or path, and where built files are kept → ready to transcribe for as long as the context lasts."""


class UnavailableError(Exception):
    """A system cannot take part; the message says what it lacks."""


@contextmanager
def needs(package: str) -> Iterator[None]:
    """Around the imports of a peer.

    Raises:
        UnavailableError: the package cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        raise UnavailableError(f"{package} cannot be imported ({error}): pip install rayscribe[bench]") from error
