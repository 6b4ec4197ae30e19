"""What is made of measurements: exact figures for made-up ones, and a run on a service that is a fake."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.bench import plots, run
from benchmarks.bench.__main__ import main
from benchmarks.bench.report import report
from benchmarks.load import peer
from benchmarks.load.loops import Answer, Window
from benchmarks.load.measurement import AROUND, Measurement, first_texts, stage_medians
from benchmarks.load.processes import Usage
from benchmarks.load.ratios import ratios
from benchmarks.load.results import Results, Setup
from benchmarks.load.server_timing import ServerTiming
from benchmarks.load.service import Service
from benchmarks.load.tables import COLUMNS, measurement_table, name_of, rows_table, stage_table
from benchmarks.peers import Transcribe
from benchmarks.scoring import Score
from benchmarks.speech_set import Clip
from serve_app.settings import Settings
from tests.benchmarks.fake_service import FakeService, fake_service, text_clips

SETUP = Setup("base", ("threads=2",), "a processor", 2, 20, 100.0, {"ray": "2.60"})


def measurement(name: str, per_s: float, median_ms: float | None = None, errors: int = 5) -> Measurement:
    """40 clips of 5 s with 100 words; latencies of half to one and a half times the median."""
    return Measurement(
        name=name,
        requests=40,
        audio_s=200.0,
        wall_s=40 / per_s,
        latencies_ms=() if median_ms is None else tuple(median_ms * factor for factor in (0.5, 1.0, 1.5)),
        score=Score(errors, 100),
        differing=0,
        failures=(),
        usage=Usage(cpu_s=20.0, peak_bytes=1_500_000_000),
    )


@pytest.fixture
def results() -> Results:
    together = dataclasses.replace(
        measurement("Rayscribe, 16 at a time", 8.0, 2000.0),
        rows=(12.2, 11.6, 16.0, 1.0),
        stages_ms={"queue": 900.0, "recognize": 1000.04, AROUND: 55.0},
    )
    return Results(
        setup=SETUP,
        limit=16,
        closed={1: measurement("Rayscribe, 1 at a time", 4.0, 250.0), 16: together},
        single={16: measurement("one row", 5.0, 3000.0)},
        engine={
            1: measurement("engine 1", 5.0, 2000.0),
            16: dataclasses.replace(measurement("engine 16", 10.0, 1500.0), floor_ms=40.0),
        },
        preparing={16: measurement("engine preparing", 8.0, 1900.0)},
        peers={"faster-whisper": measurement("fw", 1.0, 1000.0, errors=6), "ctranslate2": measurement("ct2", 4.0)},
        partial=["ctranslate2"],
        left_out=["whisper.cpp: is not there"],
    )


def cells(table: str) -> list[list[str]]:
    """Of a Markdown table, its head and its rows."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return [lines[0], *lines[2:]]


# --- one measurement


def test_what_is_counted_of_a_window(tmp_path: Path) -> None:
    clips = text_clips(tmp_path, ["the cat sat", "there", "on it"])
    counted = (
        Answer(0, 10.0, 10.5, "the bat sat", timing=ServerTiming({"read": 100.0}, rows=2.0)),
        Answer(1, 10.0, 11.0, "there"),
        Answer(2, 10.0, 12.0, None, "status 500"),
        Answer(1, 11.0, 14.0, "their"),
    )
    window = Window(counted, 10.0, 14.0, others=(Answer(2, 9.0, 9.5, "on it"), Answer(0, 12.0, 15.0, "the")))
    measured = Measurement.of("some", clips, window, Usage(6.0, 100))

    assert (measured.requests, measured.audio_s, measured.wall_s) == (3, 5.0, 4.0)
    assert (measured.clips_per_s, measured.audio_s_per_s, measured.cpu_s_per_clip) == (0.75, 1.25, 2.0)
    assert measured.latencies_ms == (500.0, 1000.0, 3000.0)
    assert [measured.latency_ms(percentile) for percentile in (0, 50, 75, 100)] == [500, 1000, 2000, 3000]
    assert measured.score == Score(1, 6)  # of the first text of each clip
    assert (measured.differing, measured.failures) == (2, ("status 500",))
    assert (measured.rows, measured.mean_rows) == ((2.0,), 2.0)
    assert measured.stages_ms == {"read": 100.0, AROUND: 400.0}
    assert name_of(measured) == "some (1 failed, 2 answered otherwise than before)"
    assert Measurement.of("batch", clips, window, Usage(6.0, 100), have_latencies=False).latency_ms(50) is None


def test_texts_are_compared_with_the_first_of_their_clip() -> None:
    answers = [Answer(place, 0, 1, text) for place, text in ((0, "a"), (1, "b"), (0, "a"), (1, None), (0, "c"))]

    assert first_texts(answers) == ({0: "a", 1: "b"}, 1)
    assert first_texts([]) == ({}, 0)


def test_medians_of_the_stages_and_of_what_is_around_them() -> None:
    stages = [{"queue": 10.0, "recognize": 300.0}, {"queue": 30.0, "recognize": 500.0}, {"recognize": 100.0}]
    answers = [Answer(0, 0, 1, "", timing=ServerTiming(one)) for one in stages]

    assert stage_medians([*answers, Answer(0, 0, 9, "")]) == {"queue": 10.0, "recognize": 300.0, AROUND: 690.0}
    assert stage_medians([Answer(0, 0, 9, "")]) == {}


# --- tables and ratios


def test_ratios(results: Results) -> None:
    found = {ratio.title: str(ratio) for ratio in ratios(results)}

    assert found == {
        "median latency, 1 at a time, over faster-whisper's": "0.25",
        "throughput, 16 at a time, over faster-whisper int8": "8.00",
        "throughput, 16 at a time, over CTranslate2 int8, trimmed frames, batch 16": "2.00",
        "throughput, 16 at a time, over 1 at a time": "2.00",
        "throughput, 16 at a time, over 16 at a time in batches of one": "1.60",
        "throughput, 16 at a time, over the engine alone": "0.80",
        "throughput, 16 at a time, over the engine with preparation": "1.00",
        "throughput of the engine, batches of 16 over batches of one": "2.00",
        "WER less that of faster-whisper int8": "-1.00 points",
    }
    assert ratios(Results(SETUP, 16)) == []


def test_what_was_measured_in_turns_is_compared_with_its_own_round(results: Results) -> None:
    """Each in a different state of the machine, in which the peer has half of its speed, or all of it, or more."""
    for speed in (0.5, 1.0, 1.25):
        turns = Results(SETUP, 16, closed={16: measurement("ours", 9.0)})
        turns.peers["faster-whisper"] = measurement("fw", speed)
        results.rounds.append(turns)
    found = {ratio.title: str(ratio) for ratio in ratios(results)}

    assert found["throughput, 16 at a time, over faster-whisper int8"] == "9.00 (7.20 to 18.00)"
    assert found["throughput, 16 at a time, over the engine alone"] == "0.80"
    assert found["WER less that of faster-whisper int8"] == "-1.00 points"


def test_columns_of_a_table(results: Results) -> None:
    head, first, second = cells(measurement_table(list(results.engine.values())))

    assert head == ["", *(title for title in COLUMNS if title != "rows")]
    assert first == ["engine 1", "5.00", "25.0", "2000", "2900", "2980", "5.00", "0.50", "1500", "", ""]
    assert second[-2:] == ["40", "2.5"]  # 100 ms a clip
    assert "least ms/clip" not in measurement_table(list(results.closed.values()))
    assert "p50 ms" not in measurement_table([results.peers["ctranslate2"]])


def test_stages_of_a_request(results: Results) -> None:
    table = stage_table(list(results.closed.values()))

    assert table is not None
    assert cells(table) == [
        ["median ms", "Rayscribe, 16 at a time"],
        ["queue", "900.0"],
        ["recognize", "1000.0"],
        [AROUND, "55.0"],
        ["client, from request to answer", "2000.0"],
    ]
    assert stage_table([results.closed[1]]) is None


def test_rows_at_a_time(results: Results) -> None:
    table = rows_table(list(results.closed.values()))

    assert table is not None
    assert cells(table) == [["rows", "Rayscribe, 16 at a time"], ["1", "25 %"], ["12", "50 %"], ["16", "25 %"]]
    assert rows_table([results.closed[1]]) is None


def test_the_report_begins_with_the_machine(results: Results) -> None:
    document = report(results)

    assert document.startswith("Whisper base (threads=2) on a processor, 2 processors: 20 clips, 100 s.\nray 2.60.\n\n")
    assert [line for line in document.splitlines() if line.startswith("## ")] == [
        "## The service: so many requests at a time, each followed by the next",
        "## The service in batches of one (`max_batch_size=1`)",
        "## The engine alone, its recordings prepared beforehand",
        "## The same, preparing them on the way",
        "## Others, each in a process of its own",
        "## How they compare",
        "## One request",
        "## Rows decoded at a time, share of the requests",
        "## Left out",
    ]


def test_every_plot_is_drawn(results: Results, tmp_path: Path) -> None:
    plots.draw(results, tmp_path / "bench")
    drawn = {path.name for path in tmp_path.iterdir() if path.stat().st_size > 1000}

    assert drawn == {f"bench-{name}.{suffix}" for name in ("latency", "batch", "rows") for suffix in ("png", "svg")}
    plots.draw(Results(SETUP, 16), tmp_path / "nothing")
    assert len(list(tmp_path.iterdir())) == 6


# --- runs


@pytest.mark.parametrize(("name", "calls"), [("faster-whisper", [2, 1, 1, 1]), ("ctranslate2", [2, 3])])
def test_a_peer_that_works_clip_by_clip_is_given_one_at_a_time(
    name: str, calls: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clips = text_clips(tmp_path, ["one", "two", "three"])
    given: list[int] = []

    @contextmanager
    def load(model: str, cache_dir: Path | None) -> Iterator[Transcribe]:
        def transcribe(clips: Sequence[Clip]) -> list[str]:
            given.append(len(clips))
            return [clip.text for clip in clips]

        yield transcribe

    monkeypatch.setattr(peer, "PEERS", {name: load})
    window = peer.run_peer(name, "base", clips, None)

    assert given == calls
    assert [(answer.place, answer.text) for answer in window.counted] == [(0, "one"), (1, "two"), (2, "three")]
    assert window.start_s <= window.counted[0].due_s < window.end_s == window.counted[2].done_s


def test_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    started: list[Sequence[str]] = []

    @contextmanager
    def fake(model: str, settings: Sequence[str]) -> Iterator[Service]:
        started.append([model, *settings])
        with fake_service(FakeService()) as service:
            yield service

    monkeypatch.setattr(run, "running_service", fake)
    clips = text_clips(tmp_path, ["cats", "cats and", "cats and dogs", "mice"])
    plan = run.Plan((1, 2), (2,), (), (0.5,), 5, 2, (), rounds=2)
    bench = run.Bench(Settings(model="base"), ["threads=2"], clips, plan, tmp_path / "reports")
    bench.run()
    results = bench.results

    ours = ["base", "threads=2"]
    assert started == [ours, [*ours, "max_batch_size=1"], ours, ours]
    assert [measured.requests for measured in results.measurements()] == [8, 8, 8, 5, 8, 8, 8, 8]
    assert [list(turns.closed) for turns in results.rounds] == [[1, 16], [1, 16]]
    assert all(measured.score == Score(0, 7) for measured in results.measurements())
    assert all(measured.mean_rows == 3.5 for measured in results.measurements())
    assert results.arriving[0.5].name == f"Rayscribe, 50 %, {results.capacity / 2:.2f}/s"
    document = (tmp_path / "reports" / "bench.md").read_text()
    assert document == report(results)
    assert "| prepare | 0.5 |" in document
    printed = capsys.readouterr().out
    assert printed.startswith(document.split("\n\n")[0])
    assert "| Rayscribe, batches of one, 2 at a time | " in printed
    data = json.loads((tmp_path / "reports" / "bench.json").read_text())
    assert data["setup"]["clips"] == 4
    assert data["closed"]["2"]["rows"] == [3.5] * 8


@pytest.mark.parametrize("wrong", [["nonsense"], ["no_such=1"], ["--peers", "nobody"], ["--speech", "nowhere"]])
def test_what_is_wrong_with_the_command_is_said(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(wrong)
    assert capsys.readouterr().err
