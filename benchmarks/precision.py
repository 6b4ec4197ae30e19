"""What each precision costs and gives: time, memory, size, and errors on labelled speech, in one run.

python -m benchmarks.precision --model base --speech DIR --output reports

Everything runs on the CPU, in ONNX Runtime unless it says OpenVINO, in a process of its own for each precision. `int8
calibrated` and `mixed` are the placement and the ranges that TensorRT gets, with float32 scales: their errors are what
a GPU is to be expected to make, their times say nothing about one. Every other clip is for calibration; texts are
scored on all clips, and the increase over fp32 on the others alone as well.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from asr.audio import decode_audio
from asr.build.artefacts import Artefacts, ensure_artefacts
from asr.build.recipe import Recipe
from asr.checkpoint import load_checkpoint
from asr.engine import Engine, encode
from asr.errors import AsrError
from asr.features import WINDOW_S, LogMel
from asr.loading import cpu_session, engine_of
from asr.local import LocalTranscriber
from asr.processors import usable_cpus
from asr.transcript import DecodingOptions
from asr.utterance import Utterance
from benchmarks import precision_plots
from benchmarks.accuracy import cpu_name
from benchmarks.scoring import Score, score_clip, score_ending, total
from benchmarks.speech_set import APART, DEFAULT_SPEECH, Clip, SpeechSetError, read_speech_set

VARIANTS: Mapping[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "fp16": {"precision": "fp16"},
    "int8": {"precision": "int8"},
    "int8-weights": {"precision": "int8-weights"},
    "int8 calibrated": {"precision": "int8", "activations": "calibrated"},
    "int8 calibrated, no silence": {"precision": "int8", "activations": "calibrated", "trailing_silence": False},
    "mixed": {"precision": "mixed", "activations": "calibrated"},
    "OpenVINO bf16": {"precision": "bf16", "backend": "openvino"},
    "OpenVINO int8": {"precision": "int8", "backend": "openvino"},
}
MAIN_LANGUAGES = ("en", "zh")
OTHERS = "others"
ENDING_UNITS = 3
TIMED_CLIPS = 24
BATCHES = (8, 16)
ENCODED = {"6 s": (600, False), "30 s": (3000, True)}  # frames, and whether as a whole window
ENCODER_RUNS = 7

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Measured:
    """One precision of one model.

    encoder_bytes, decoder_bytes: of the files; encoder_ms: of one row, by what of ENCODED it is; latency_ms: median of
    an utterance alone; utterances_per_s: by batch; peak_bytes: largest resident memory of the process; scores: of every
    clip; endings: of the last words of all clips.
    """

    name: str
    quantized: int
    products: int
    encoder_bytes: int
    decoder_bytes: int
    encoder_ms: dict[str, float]
    latency_ms: float
    utterances_per_s: dict[int, float]
    peak_bytes: int
    scores: list[Score]
    endings: Score
    choice: dict[str, Any] | None


def measure(model: str, name: str, recipe: Recipe, clips: Sequence[Clip], cache: Path | None) -> Measured:
    """Measure what has been built."""
    checkpoint = load_checkpoint(model)
    artefacts = ensure_artefacts(checkpoint, recipe, cache)
    manifest: dict[str, Any] = artefacts.manifest
    engine = engine_of(checkpoint, artefacts, usable_cpus())
    engine.warm_up(1)
    timed = [clip for clip in clips if clip.language == "en" and clip.duration_s <= 16][:TIMED_CLIPS]
    utterances = sorted((_utterance(clip, engine.dims.n_mels) for clip in timed), key=lambda one: one.frames)
    latency_ms = 1000 * statistics.median(_seconds(engine.recognize, [utterance]) for utterance in utterances)
    utterances_per_s = {
        batch: len(utterances)
        / sum(
            _seconds(engine.recognize, utterances[start : start + batch]) for start in range(0, len(utterances), batch)
        )
        for batch in BATCHES
    }
    encoder_ms = {title: _encoder_ms(artefacts, engine.dims.n_mels, *size) for title, size in ENCODED.items()}
    texts = _texts(engine, clips)
    return Measured(
        name=name,
        quantized=sum(graph["quantized"] for graph in manifest["graphs"]),
        products=sum(graph["products"] for graph in manifest["graphs"]),
        encoder_bytes=artefacts.encoder.stat().st_size,
        decoder_bytes=artefacts.decoder.stat().st_size,
        encoder_ms=encoder_ms,
        latency_ms=latency_ms,
        utterances_per_s=utterances_per_s,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        scores=[score_clip(clip, text) for clip, text in zip(clips, texts, strict=True)],
        endings=total(score_ending(clip, text, ENDING_UNITS) for clip, text in zip(clips, texts, strict=True)),
        choice=manifest["choice"],
    )


def _utterance(clip: Clip, n_mels: int) -> Utterance:
    return Utterance(LogMel(n_mels)(decode_audio(clip.path.read_bytes())), DecodingOptions(language=clip.language))


def _seconds(function: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> float:
    started = time.perf_counter()
    function(*arguments, **named)
    return time.perf_counter() - started


def _encoder_ms(artefacts: Artefacts, n_mels: int, frames: int, full_window: bool) -> float:  # noqa: FBT001
    session = cpu_session(artefacts.encoder, artefacts.recipe, usable_cpus())
    noise = np.random.default_rng(0).standard_normal((n_mels, frames), np.float32)
    utterance = Utterance(noise, full_window=full_window)
    return 1000 * statistics.median(_seconds(encode, session, [utterance]) for _ in range(ENCODER_RUNS))


def _texts(engine: Engine, clips: Sequence[Clip]) -> list[str]:
    """
    Raises:
        AsrError: a clip cannot be transcribed.
    """
    transcriber = LocalTranscriber(engine)
    contents = [clip.path.read_bytes() for clip in clips]
    transcripts = transcriber.transcribe_many(contents, [DecodingOptions(language=clip.language) for clip in clips])
    transcriber.close()
    texts = []
    for transcript in transcripts:
        if isinstance(transcript, AsrError):
            raise transcript
        texts.append(transcript.text)
    return texts


def _by_language(clips: Sequence[Clip], *, held_out: bool = False) -> dict[str, list[int]]:
    """Language → places of its clips; held_out: only of those that were not for calibration."""
    places: dict[str, list[int]] = {language: [] for language in (*MAIN_LANGUAGES, OTHERS)}
    for index, clip in enumerate(clips):
        if index % 2 or not held_out:
            places[clip.language if clip.language in MAIN_LANGUAGES else OTHERS].append(index)
    return {language: indices for language, indices in places.items() if indices}


# --- the report


def report(model: str, results: Sequence[Measured], clips: Sequence[Clip]) -> str:
    """Markdown tables. results: the first is what the others are compared with."""
    exact = results[0]
    seconds = sum(clip.duration_s for clip in clips)
    lines = [
        f"Whisper {model} on {cpu_name()}, {usable_cpus()} processors: {len(clips)} clips, {seconds:.0f} s.",
        "",
        "| | products in int8 | encoder MB | decoder MB | peak memory MB | "
        + " | ".join(f"encoder, {title}, ms" for title in ENCODED)
        + " | utterance alone, ms | "
        + " | ".join(f"utterances/s, batch {batch}" for batch in BATCHES)
        + " |",
        "|---|" + "---:|" * (5 + len(ENCODED) + len(BATCHES)),
        *map(_speed_row, results),
        "",
        "| | "
        + " | ".join(f"{language}, % | change | on held-out clips" for language in _by_language(clips))
        + f" | errors in the last {ENDING_UNITS} words |",
        "|---|" + "---:|" * (3 * len(_by_language(clips)) + 1),
        *(_error_row(measured, exact, clips) for measured in results),
    ]
    return "\n".join(lines) + "\n"


def _speed_row(measured: Measured) -> str:
    cells = [
        measured.name,
        f"{measured.quantized} of {measured.products}",
        *(f"{size / 1e6:.1f}" for size in (measured.encoder_bytes, measured.decoder_bytes)),
        f"{measured.peak_bytes / 1e6:.0f}",
        *(f"{milliseconds:.0f}" for milliseconds in measured.encoder_ms.values()),
        f"{measured.latency_ms:.0f}",
        *(f"{rate:.2f}" for rate in measured.utterances_per_s.values()),
    ]
    return f"| {' | '.join(cells)} |"


def _error_row(measured: Measured, exact: Measured, clips: Sequence[Clip]) -> str:
    cells = [measured.name]
    held_out = _by_language(clips, held_out=True)
    for language, places in _by_language(clips).items():
        cells.append(f"{100 * total(measured.scores[place] for place in places).rate:.2f}")
        cells += [_change(measured, exact, places), _change(measured, exact, held_out.get(language, []))]
    cells.append(f"{measured.endings.errors} of {measured.endings.reference_length}")
    return f"| {' | '.join(cells)} |"


def _change(measured: Measured, exact: Measured, places: Sequence[int]) -> str:
    """Of the error rate, in points, and its standard error over the clips, which are few."""
    length = sum(exact.scores[place].reference_length for place in places)
    changes = [measured.scores[place].errors - exact.scores[place].errors for place in places]
    if measured is exact or not length:
        return ""
    return f"{100 * sum(changes) / length:+.2f} ± {100 * math.sqrt(sum(one**2 for one in changes)) / length:.2f}"


# --- the run


def run(model: str, names: Sequence[str], clips: Sequence[Clip], cache: Path | None, output: Path) -> list[Measured]:
    """Build and measure the variants one after another, each in a process of its own."""
    output.mkdir(parents=True, exist_ok=True)
    calibration = output / "calibration.jsonl"
    calibration.write_text("".join(_manifest_line(clip) for clip in clips[::2]), encoding="utf-8")
    results = []
    for name in names:
        print(f"{model}: {name}", file=sys.stderr)
        recipe = Recipe(**VARIANTS[name], calibration=calibration)
        _in_a_process(_build, model, recipe, cache)
        results.append(_in_a_process(measure, model, name, recipe, clips, cache))
    return results


def _manifest_line(clip: Clip) -> str:
    entry = {"file": str(clip.path.resolve()), "text": clip.text, "language": clip.language}
    return json.dumps(entry, ensure_ascii=False) + "\n"


def _build(model: str, recipe: Recipe, cache: Path | None) -> None:
    ensure_artefacts(load_checkpoint(model), recipe, cache)


def _in_a_process(function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
    """A new one, so that its peak of memory is its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        return executor.submit(function, *arguments, **named).result()


def suitable(clips: Sequence[Clip], model: str) -> list[Clip]:
    """Clips of one window whose text is sure; of English alone for an English model."""
    languages = ("en",) if Path(model).name.endswith(".en") else None
    return [
        clip
        for clip in clips
        if clip.confidence == "high"
        and clip.text
        and clip.duration_s < WINDOW_S
        and clip.kind not in APART
        and (languages is None or clip.language in languages)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="base")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--speech", type=Path, default=DEFAULT_SPEECH, help="folder of a speech set")
    parser.add_argument("--output", type=Path, default=Path("reports"), help="folder for tables and plots")
    parser.add_argument("--cache", type=Path, help="where built graphs are kept")
    options = parser.parse_args(arguments)
    try:
        clips = suitable(read_speech_set(options.speech), options.model)
    except SpeechSetError as error:
        parser.error(str(error))
    names = ["fp32", *(name for name in options.variants if name != "fp32")]
    results = run(options.model, names, clips, options.cache, options.output)
    stem = options.output / f"precision-{Path(options.model).name}"
    text = report(options.model, results, clips)
    stem.with_name(f"{stem.name}.md").write_text(text, encoding="utf-8")
    stem.with_name(f"{stem.name}.json").write_text(json.dumps([asdict(one) for one in results], indent=2) + "\n")
    precision_plots.draw(results, stem)
    print(text)


if __name__ == "__main__":
    main()
