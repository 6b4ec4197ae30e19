"""A soak finds what is wrong with a service that is a fake, and nothing where nothing is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import soak as soaking
from benchmarks.load.bounds import Bound, bound_table
from benchmarks.load.loops import Answer
from benchmarks.load.processes import ProcessMemory
from benchmarks.load.service import Service, ServiceError
from benchmarks.soak import Soak, bounds, report, soak
from tests.benchmarks.fake_service import FakeService, fake_service, text_clips

MB = 1_000_000


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soaking, "SETTLING", 6)
    monkeypatch.setattr(soaking, "CALM_S", 0.0)
    monkeypatch.setattr(soaking, "EXPORT_S", 0.0)


def answers(count: int, latency_s: float, text: str | None = "text", *, patient: bool = True) -> list[Answer]:
    return [Answer(0, float(number), number + latency_s, text, patient=patient) for number in range(count)]


def process(pid: int, megabytes: float, name: str = "replica") -> ProcessMemory:
    size = round(megabytes * MB)
    return ProcessMemory(pid, name, size, 2 * size, 3 * size)


def broken(found: Soak) -> dict[str, float]:
    return {bound.title: round(bound.value, 6) for bound in bounds(found) if not bound.holds}


def test_a_service_that_stays_as_it_is(tmp_path: Path) -> None:
    clips = text_clips(tmp_path, ["one", "two", "three"])
    with fake_service(FakeService()) as service:
        found = soak(service, clips, 12, concurrency=2, disconnect=0.0)

    assert len(found.settled) >= 6
    assert len(found.answers) >= 12
    assert all(answer.text == clips[answer.place].text for answer in found.answers)
    assert os.getpid() in {before.pid for before, _ in found.pairs}
    assert all(after is not None and after.pid == before.pid for before, after in found.pairs)
    assert broken(found) == {}


def test_clients_that_leave_are_no_failures(tmp_path: Path) -> None:
    clips = text_clips(tmp_path, ["one", "two", "three"])
    fake = FakeService()
    with fake_service(fake) as service:
        found = soak(service, clips, 12, concurrency=2, disconnect=1.0)

    assert all(answer.patient for answer in found.settled)
    assert not any(answer.patient for answer in found.soaked)
    assert {answer.failure for answer in found.answers} == {None}
    assert any(answer.text is None for answer in found.soaked)


def test_failures_and_texts_that_change_are_found(tmp_path: Path) -> None:
    clips = text_clips(tmp_path, ["one", "fickle", "fail"])
    with fake_service(FakeService()) as service:
        found = soak(service, clips, 9, concurrency=1, disconnect=0.0)

    failed = sum(answer.place == 2 for answer in found.answers)
    changed = sum(answer.place == 1 for answer in found.answers) - 1
    assert broken(found) == {
        "failed requests": failed,
        "answers with another text than the first for their clip": changed,
    }
    assert 'status 500: {"text": "out of order"}' in report(found)


def test_rows_that_never_leave_are_found(tmp_path: Path) -> None:
    with fake_service(FakeService(rows=(0, 3, 1))) as service:
        found = soak(service, text_clips(tmp_path, ["one"]), 7, concurrency=1, disconnect=0.0)

    assert broken(found) == {"rows that the model still holds": 4}


def test_a_service_that_does_not_say_what_it_holds(tmp_path: Path) -> None:
    with fake_service(FakeService(rows=())) as service, pytest.raises(ServiceError, match="rows_in_flight"):
        soak(service, text_clips(tmp_path, ["one"]), 7, concurrency=1, disconnect=0.0)


def test_bounds_of_memory_and_of_latency() -> None:
    before = [process(1, 1000), process(2, 400, "grows"), process(3, 10, "small"), process(4, 50, "ends")]
    after = [process(1, 1010), process(2, 440, "grows"), process(3, 12, "small"), process(5, 50, "is new")]
    stay, leave = answers(10, 0.5), answers(3, 9.0, text=None, patient=False)

    assert broken(Soak(answers(4, 0.4), [*stay, *leave], before, after, rows_left=0)) == {
        "processes that have ended": 1,
        "memory of all processes, times": pytest.approx(1462 / 1410),
        "memory of grows, times": 1.1,
        "median latency of clients that stay, times that before any left": 1.25,
    }
    assert broken(Soak(answers(4, 0.4), stay, before[:1], after[:1], rows_left=0)) == {}


def test_growth_in_the_report() -> None:
    found = Soak(
        answers(4, 0.4), answers(5, 0.5), [process(1, 100), process(2, 1, "ends")], [process(1, 101)], rows_left=0
    )
    document = report(found)

    assert "| replica | 100.0 | 101.0 | +1.0 % | 300.0 | 303.0 | +1.0 % |" in document
    assert "| ends | 1.0 | ended |  | 3.0 | ended |  |" in document
    assert "| then | 500 | 500 | 500 |" in document
    assert document.startswith("9 requests, 1.11 a second; 0 clients left.")


def test_a_bound_says_whether_it_holds() -> None:
    table = bound_table([Bound("one", 1.02, 1.02), Bound("two", 1, 0)])

    assert table.splitlines()[2:] == ["| one | 1.02 | 1.02 | yes |", "| two | 1 | 0 | **no** |"]


@pytest.mark.parametrize(("text", "status"), [("two", 0), ("fickle", 1)])
def test_the_command(text: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def fake(model: str, settings: Sequence[str]) -> Iterator[Service]:
        assert (model, settings) == ("tiny.en", ["threads=2"])
        with fake_service(FakeService()) as service:
            yield service

    monkeypatch.setattr(soaking, "running_service", fake)
    monkeypatch.setattr(soaking, "clips_of", lambda *_: text_clips(tmp_path, ["one", text]))
    arguments = ["threads=2", "--requests", "10", "--concurrency", "2", "--output", str(tmp_path / "reports")]

    assert soaking.main(arguments) == status
    assert (tmp_path / "reports" / "soak.md").read_text().startswith("Whisper tiny.en (threads=2) on ")
    assert (tmp_path / "reports" / "soak.json").stat().st_size > 1000
