"""Read a speech set: a folder with a manifest.jsonl, one JSON object a line, and the recordings that it names.

Every clip belongs to one group, the row of a result table that it is averaged in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from asr.languages import LANGUAGES

DEFAULT_SPEECH = Path(__file__).resolve().parents[2] / "shared" / "speech"
MANIFEST = "manifest.jsonl"
LONG_S = 60.0


class SpeechSetError(Exception):
    """The speech set cannot be used; the message names the file."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        path, reason = self.args
        return f"{path}: {reason}"


@dataclass(frozen=True, order=True)
class Group:
    """Clips that are averaged together. rank: its place in a table."""

    rank: int
    name: str


APART = ("digits", "command", "long", "non-speech")
"""Kinds that are shown apart from every average."""
PARTS = {
    "en": Group(-2, f"**English**, clips under {LONG_S:.0f} s, noisy ones included"),
    "zh": Group(-1, f"**Mandarin**, clips under {LONG_S:.0f} s, noisy ones included"),
}
NON_SPEECH = Group(6, "non-speech: invented words")


@dataclass(frozen=True)
class Clip:
    """One recording and what is said in it.

    path: of the recording; text: reference, as its source writes it, empty for non-speech; alt_text: a second accepted
    wording; language: ISO 639-1 code, None for non-speech; kind: read, speech, spontaneous, broadcast, telephony,
    command, digits, noisy, long or non-speech; confidence: of the text, high or medium.
    """

    id: str
    path: Path
    text: str
    alt_text: str | None
    language: str | None
    duration_s: float
    kind: str
    confidence: str

    @property
    def references(self) -> tuple[str, ...]:
        """Every wording that counts as right."""
        return (self.text,) if self.alt_text is None else (self.text, self.alt_text)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The rows of a table that the clip counts in: its own, and for English and Mandarin the sum of several."""
        part = PARTS.get(self.language or "")
        counts = self.confidence == "high" and self.duration_s < LONG_S and self.kind not in APART
        return (part, self.group) if part and counts else (self.group,)

    @property
    def group(self) -> Group:
        """Very short clips, noisy and long ones and those whose text is uncertain are shown apart from the averages."""
        if self.language is None or self.kind == "non-speech":
            return NON_SPEECH
        language = "Mandarin" if self.language == "zh" else LANGUAGES.get(self.language, self.language).title()
        uncertain = "" if self.confidence == "high" else ", text uncertain"
        if self.kind == "long" or self.duration_s >= LONG_S:
            return Group(5, f"long recording {self.id}{uncertain}")
        if self.kind in ("digits", "command"):
            return Group(4, f"{language} digits and commands")
        if self.kind == "noisy":
            return Group(2, f"{language} noisy{uncertain}")
        if uncertain:
            return Group(3, language + uncertain)
        if self.language == "en":
            return Group(0, "English, clean")
        return Group(0, f"{language}, clean") if self.language == "zh" else Group(1, language)


def read_speech_set(folder: Path = DEFAULT_SPEECH) -> list[Clip]:
    """The clips in the order of the manifest.

    Raises:
        SpeechSetError: the manifest or a recording is missing, or a line of the manifest cannot be read.
    """
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise SpeechSetError(str(manifest), "there is no such file; --speech names the folder of a speech set")
    clips = []
    for place, line in _lines(manifest):
        try:
            clip = _clip(folder, json.loads(line))
        except (KeyError, TypeError, ValueError) as error:
            raise SpeechSetError(place, f"not a clip: {error!r}") from error
        if not clip.path.is_file():
            raise SpeechSetError(str(clip.path), f"named by {place}, but there is no such file")
        clips.append(clip)
    return clips


def _lines(manifest: Path) -> Iterator[tuple[str, str]]:
    """→ (file:line, text) for every line that is not blank."""
    for number, line in enumerate(manifest.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            yield f"{manifest}:{number}", line


def _clip(folder: Path, entry: Mapping[str, object]) -> Clip:
    language, alt_text = entry["language"], entry.get("alt_text")
    return Clip(
        id=str(entry["id"]),
        path=folder / str(entry["file"]),
        text=str(entry["text"]),
        alt_text=None if alt_text is None else str(alt_text),
        language=None if language is None else str(language),
        duration_s=float(str(entry["duration_s"])),
        kind=str(entry["kind"]),
        confidence=str(entry["confidence"]),
    )
