"""Everything that `asr` raises on purpose, and whose fault it is.

    AsrError
    ├── InputError                  the caller's fault: the message is meant for them
    │   ├── AudioDecodeError        bytes → waveform: not audio, no audio track, nothing decodable
    │   ├── UnsupportedLanguageError
    │   └── UnsupportedTaskError
    ├── CheckpointError             a file of the model is missing, damaged or not what it should be
    │   ├── CheckpointNotFoundError
    │   ├── ChecksumMismatchError
    │   └── UnsupportedArchitectureError
    ├── ArtefactError               a built file (ONNX graph, TensorRT plan, manifest) cannot be made or used
    │   └── EngineBuildError        TensorRT makes no plan of a graph
    └── RecognitionError            the model failed on this utterance
        └── OutOfMemoryError        the batch does not fit the device; a smaller one may

Every class is built from positional arguments that it keeps in `args`, so that it survives pickling between processes.
"""

from __future__ import annotations

from collections.abc import Sequence


class AsrError(Exception):
    """Root of the tree."""


class InputError(AsrError):
    """The request cannot be served as it is; `param` names the request field at fault."""

    param: str | None = None


class AudioDecodeError(InputError):
    """The bytes hold no audio that can be decoded."""

    param = "file"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)

    def __str__(self) -> str:
        return f"The file cannot be transcribed: {self.args[0]}."


class UnsupportedLanguageError(InputError):
    """The model does not know the language asked for."""

    param = "language"

    def __init__(self, language: str, known: int) -> None:
        super().__init__(language, known)

    def __str__(self) -> str:
        language, known = self.args
        languages = f"{known} languages by their ISO 639-1 code" if known > 1 else "English only"
        return f"Language {language!r} is not supported by this model, which knows {languages}."


class UnsupportedTaskError(InputError):
    """The model was asked to do something that it cannot."""

    param = "task"

    def __init__(self, task: str) -> None:
        super().__init__(task)

    def __str__(self) -> str:
        return f"This model cannot {self.args[0]}: Whisper transcribes, and unless it is English-only, translates."


class CheckpointError(AsrError):
    """A model file cannot be used; the message names it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        path, reason = self.args
        return f"{path}: {reason}"


class CheckpointNotFoundError(CheckpointError):
    """There is no checkpoint under this name or path."""


class ChecksumMismatchError(CheckpointError):
    """A weights file is not the one that was pinned."""

    def __init__(self, path: str, expected: str, actual: str) -> None:
        super(CheckpointError, self).__init__(path, expected, actual)

    def __str__(self) -> str:
        path, expected, actual = self.args
        return f"{path}: sha256 is {actual}, expected {expected}; the file is damaged or another version"


class UnsupportedArchitectureError(CheckpointError):
    """The checkpoint is readable, but it is not a Whisper model."""


class ArtefactError(AsrError):
    """A built artefact cannot be made or used; the message names it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        path, reason = self.args
        return f"{path}: {reason}"


class EngineBuildError(ArtefactError):
    """TensorRT cannot make a plan of a graph. log: what its logger said, the most telling part of every failure."""

    def __init__(self, path: str, reason: str, log: Sequence[str] = ()) -> None:
        super(ArtefactError, self).__init__(path, reason, tuple(log))

    def __str__(self) -> str:
        path, reason, log = self.args
        return "\n  ".join((f"{path}: {reason}", *log))


class RecognitionError(AsrError):
    """The model failed on one utterance; its neighbours are not affected."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)

    def __str__(self) -> str:
        return f"recognition failed: {self.args[0]}"


class OutOfMemoryError(RecognitionError):
    """The device has no room for the batch."""
