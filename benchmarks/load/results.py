"""Everything that one run of the benchmark found, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from asr.processors import usable_cpus
from benchmarks.accuracy import cpu_name
from benchmarks.load.measurement import Measurement
from benchmarks.speech_set import Clip

PACKAGES = (
    *("rayscribe", "ray", "torch", "onnxruntime", "openvino"),
    *("faster-whisper", "ctranslate2", "pywhispercpp", "transformers"),
)
REFERENCE = 16
"""Requests at a time at which systems are compared."""


@dataclass(frozen=True)
class Setup:
    """What was measured where. settings: NAME=VALUE, of the service; audio_s: of all clips; versions: by package."""

    model: str
    settings: tuple[str, ...]
    cpu: str
    processors: int
    clips: int
    audio_s: float
    versions: Mapping[str, str]

    @classmethod
    def here(cls, model: str, settings: Sequence[str], clips: Sequence[Clip]) -> Setup:
        return cls(
            model=model,
            settings=tuple(settings),
            cpu=cpu_name(),
            processors=usable_cpus(),
            clips=len(clips),
            audio_s=sum(clip.duration_s for clip in clips),
            versions=_versions(),
        )

    def __str__(self) -> str:
        """The first lines of a report."""
        settings = f" ({' '.join(self.settings)})" if self.settings else ""
        versions = ", ".join(f"{package} {number}" for package, number in self.versions.items())
        return (
            f"Whisper {self.model}{settings} on {self.cpu}, {self.processors} processors: {self.clips} clips, "
            f"{self.audio_s:.0f} s.\n{versions}."
        )


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@dataclass
class Results:
    """Filled as the run goes.

    limit: rows that the service decodes at a time at most; closed, single: by requests at a time, single with a limit
    of one; arriving: by share of the capacity; engine: by its limit, its recordings prepared beforehand; preparing: the
    same, preparing them on the way; peers: by name; rounds: in which a few were measured in turns; partial: peers that
    were given only some of the clips; left_out: what is not there, and why; processor: what it can do at best, in
    words.
    """

    setup: Setup
    limit: int
    closed: dict[int, Measurement] = field(default_factory=dict)
    single: dict[int, Measurement] = field(default_factory=dict)
    arriving: dict[float, Measurement] = field(default_factory=dict)
    engine: dict[int, Measurement] = field(default_factory=dict)
    preparing: dict[int, Measurement] = field(default_factory=dict)
    peers: dict[str, Measurement] = field(default_factory=dict)
    rounds: list[Results] = field(default_factory=list)
    partial: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    processor: str = ""

    @property
    def capacity(self) -> float:
        """Clips per second that the service gets through at best."""
        return max((measured.clips_per_s for measured in self.closed.values()), default=0.0)

    def measurements(self) -> Iterator[Measurement]:
        for section in (self.closed, self.single, self.arriving, self.engine, self.preparing, self.peers):
            yield from section.values()
        for turns in self.rounds:
            yield from turns.measurements()
