"""Error rates of Rayscribe beside those of faster-whisper: the same weights, the same recordings, the language given.

python -m benchmarks.accuracy --models base tiny.en --speech DIR --json accuracy.json --details accuracy.jsonl
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from asr.checkpoint.embedded import MODELS
from asr.errors import AsrError
from asr.processors import usable_cpus
from benchmarks.scoring import CHARACTER_LANGUAGES, Result, Run, Score, score_failure, score_text
from benchmarks.speech_set import DEFAULT_SPEECH, NON_SPEECH, Clip, Group, SpeechSetError, read_speech_set
from benchmarks.systems import SYSTEMS, TITLES, UnavailableError


def measure(model: str, system: str, clips: Sequence[Clip], cache_dir: Path | None) -> Run:
    """Transcribe and score the clips.

    Raises:
        UnavailableError: the system cannot run this model here.
    """
    with SYSTEMS[system](model, cache_dir) as transcribe:
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
        label = _label(group, [result.clip for result in runs[0].results if group in result.clip.groups])
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
        default=list(SYSTEMS),
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
