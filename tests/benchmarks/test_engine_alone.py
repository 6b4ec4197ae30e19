"""The engine under load without a service, and the least time that its work could take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from asr.build.recipe import Backend, Precision
from asr.devices import Device
from asr.features import SAMPLE_RATE
from asr.roofline import MODELS, PRECISIONS, floor
from asr.scheduler import BatchLimits
from benchmarks.load import engine
from benchmarks.load import floor as floors
from benchmarks.load.engine import EngineRun, Loading, Row, run_engine
from benchmarks.load.floor import floor_ms
from benchmarks.load.loops import Answer, Window
from benchmarks.speech_set import Clip
from tests.audio_files import wav

CPU = Device("this CPU", 1e10, {"fp32": 1e11, "fp16": 2e11, "int8": 4e11}, 8e9, "made up")
WORDS = [
    "it was the best of times it was the worst of times it was the age of wisdom",
    "it was the season of light it was the season of darkness",
]


@pytest.fixture(scope="module")
def clips(speech: NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> list[Clip]:
    folder = tmp_path_factory.mktemp("clips")
    cuts = [
        speech[int(start_s * SAMPLE_RATE) : int(end_s * SAMPLE_RATE)] for start_s, end_s in ((1, 6.6), (13.2, 17.1))
    ]
    paths = [folder / f"{number}.wav" for number in range(len(cuts))]
    for path, cut in zip(paths, cuts, strict=True):
        path.write_bytes(wav(cut))
    return [Clip(path.stem, path, "", None, "en", 4.0, "read", "high") for path in paths]


@pytest.mark.parametrize("preparing_threads", [0, 2])
def test_the_engine_alone(preparing_threads: int, clips: Sequence[Clip], artefact_cache: Path) -> None:
    loading = Loading("tiny.en", "int8", "onnx", 1, artefact_cache)  # see tests/conftest.py
    run = run_engine(loading, BatchLimits(rows=2), clips, [0, 1, 0], 2, preparing_threads)
    engine._engine.cache_clear()

    assert len(run.window.counted) == 3
    for answer in run.window.answers:
        assert re.findall(r"[a-z]+", str(answer.text).lower()) == WORDS[answer.place].split()
        assert answer.timing.rows is not None
        assert 1 <= answer.timing.rows <= 2
    for place, words in enumerate(WORDS):
        [row] = run.work[place]
        assert row.tokens > len(words.split())
        assert 200 < row.positions < 450
    assert floor_ms(run, CPU, "onnx", "int8", 2.0) > 0  # type: ignore[operator]


def test_the_processor_is_measured_on_all_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    before = torch.get_num_threads()

    def this_cpu() -> Device:
        threads.append(torch.get_num_threads())
        return CPU

    monkeypatch.setattr(floors, "this_cpu", this_cpu)
    monkeypatch.setattr(floors, "usable_cpus", lambda: before + 1)

    assert floors.measured_cpu() is CPU
    assert threads == [before + 1]
    assert torch.get_num_threads() == before
    assert floors.in_words(CPU) == "10 GB/s; TFLOP/s: fp32 0.10, fp16 0.20, int8 0.40; made up"


def test_the_least_time_is_a_mean_over_clips() -> None:
    work = {0: [Row(400, 20), Row(300, 10)], 1: [], 2: [Row(1500, 100)]}
    answers = tuple(Answer(place, 0.0, 1.0, text) for place, text in ((0, "a"), (1, ""), (0, "a"), (2, None)))
    run = EngineRun(Window(answers, 0.0, 1.0), MODELS["base"], work)

    def row_ms(precision: str, row: Row) -> float:
        rows = floor(MODELS["base"], CPU, PRECISIONS[precision], batch=5, positions=row.positions, tokens=row.tokens)
        return rows.row_ms

    choices: list[tuple[Backend, Precision, str]] = [
        ("onnx", "int8", "int8-cpu"),
        ("onnx", "fp32", "fp32"),
        ("openvino", "bf16", "fp16"),
        ("auto", "int8", "int8"),
    ]
    for backend, precision, roofline in choices:
        expected = 2 * (row_ms(roofline, work[0][0]) + row_ms(roofline, work[0][1])) / 3
        assert floor_ms(run, CPU, backend, precision, 5.2) == pytest.approx(expected)
    assert floor_ms(run, CPU, "onnx", "mixed", 5.2) is None
    assert floor_ms(run, CPU, "tensorrt", "int8", 5.2) is None
    assert floor_ms(run, CPU, "onnx", "int8", None) is None
