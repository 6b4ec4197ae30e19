"""What is sent and when, and what is known of an answer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.load.loops import Answer, closed_loop, open_loop
from benchmarks.load.server_timing import ServerTiming, parse_server_timing
from benchmarks.load.workload import poisson_arrivals, shuffled, spread
from tests.benchmarks.fake_service import FakeService, fake_service, text_clips

# --- the order and the times


def test_every_pass_has_every_clip_once_in_another_order() -> None:
    order = shuffled(20, passes=3)
    passes = [order[start : start + 20] for start in (0, 20, 40)]

    assert all(sorted(one) == list(range(20)) for one in passes)
    assert passes[0] != passes[1] != passes[2]
    assert order == shuffled(20, passes=3)
    assert order[:20] == shuffled(20)


def test_arrivals_are_a_poisson_process() -> None:
    arrivals_s = poisson_arrivals(4.0, 20_000)
    gaps_s = np.diff(arrivals_s, prepend=0)

    assert min(gaps_s) >= 0
    assert np.mean(gaps_s) == pytest.approx(0.25, rel=0.02)
    assert np.std(gaps_s) == pytest.approx(0.25, rel=0.03)  # as large as the mean, unlike any steady arrival
    assert np.mean(gaps_s > 0.5) == pytest.approx(np.exp(-2), rel=0.05)
    assert arrivals_s[:10] == poisson_arrivals(4.0, 10)


def test_a_subset_has_clips_of_all_lengths(tmp_path: Path) -> None:
    clips = text_clips(tmp_path, ["a " * count for count in (7, 1, 6, 3, 5, 2, 4, 8)])

    assert [clip.duration_s for clip in spread(clips, 4)] == [2, 4, 6, 8]
    assert [clip.duration_s for clip in spread(clips, 1)] == [5]
    assert len(spread(clips, 100)) == 8


# --- the loops


def test_a_closed_loop_keeps_so_many_under_way_until_the_last_that_counts() -> None:
    under_way: list[int] = []
    sent: list[int] = []
    now = 0

    async def send(place: int, due_s: float) -> Answer:
        nonlocal now
        now += 1
        sent.append(place)
        under_way.append(now)
        await asyncio.sleep(0)
        now -= 1
        return Answer(place, due_s, time.monotonic(), "text")

    window = asyncio.run(closed_loop(send, [5, 6, 7, 8], concurrency=3))

    assert max(under_way) == 3
    assert sent[:8] == [5, 6, 7, 8, 5, 6, 7, 8]
    assert len(window.counted) == 4
    assert len(window.others) == len(sent) - 4 >= 3
    assert window.start_s == window.others[2].done_s <= window.counted[0].done_s
    assert window.end_s == window.counted[-1].done_s
    assert [answer.done_s for answer in window.answers] == sorted(answer.done_s for answer in window.answers)


def test_a_client_that_comes_late_does_not_hide_the_wait() -> None:
    async def send(place: int, due_s: float) -> Answer:
        if place == 0:
            time.sleep(0.05)  # noqa: ASYNC251 (the client is busy, and sends nothing meanwhile)
        return Answer(place, due_s, time.monotonic(), "text")

    window = asyncio.run(open_loop(send, [0, 1], [0.0, 0.01, 0.1]))

    first, second, third = window.answers
    assert first.latency_s >= 0.05
    assert 0.03 < second.latency_s < first.latency_s
    assert third.place == 0
    assert third.due_s - window.start_s == pytest.approx(0.1)
    assert window.end_s == third.done_s


# --- the client


def test_the_form_that_is_sent_and_what_is_made_of_the_answer(tmp_path: Path) -> None:
    fake = FakeService()
    with fake_service(fake) as service:
        window = service.closed_loop(text_clips(tmp_path, ["one", "one two"]), [0, 1, 1], concurrency=1)

    assert Counter(answer.text for answer in window.answers) == {"one": 2, "one two": 2}
    assert all(0 < answer.latency_s < 5 for answer in window.answers)
    assert {answer.failure for answer in window.answers} == {None}
    assert window.counted[0].timing == ServerTiming({"read": 1, "prepare": 0.5, "queue": 0.25}, rows=3.5)
    assert all(b'name="model"\r\n\r\nwhisper-1\r\n' in body for body in fake.bodies)
    assert all(b'name="language"\r\n\r\nen\r\n' in body for body in fake.bodies)


def test_failures_are_answers(tmp_path: Path) -> None:
    clips = text_clips(tmp_path, ["fail", "one"])
    with fake_service(FakeService()) as service:
        window = service.open_loop(clips, [0, 1], [0.0, 0.0])
    failed, answered = sorted(window.answers, key=lambda answer: answer.place)

    assert (failed.text, failed.failure) == (None, 'status 500: {"text": "out of order"}')
    assert (answered.text, answered.failure) == ("one", None)
    assert service.open_loop(clips, [0], [0.0]).answers[0].failure == "All connection attempts failed"


def test_a_client_that_leaves_has_no_answer_and_harms_no_other(tmp_path: Path) -> None:
    clips = text_clips(tmp_path, ["slow", "one"])
    fake = FakeService()
    with fake_service(fake) as service:
        left = service.run(clips, lambda client: client.send_and_leave(0, time.monotonic(), patience_s=0.05))
        stayed = service.run(clips, lambda client: client.send_and_leave(1, time.monotonic(), patience_s=60))

    assert (left.text, left.failure, left.patient) == (None, None, False)
    assert 0.05 <= left.latency_s < 5
    assert (stayed.text, stayed.failure, stayed.patient) == ("one", None, False)
    assert len(fake.bodies) == 2


# --- Server-Timing


@pytest.mark.parametrize(
    ("header", "timing"),
    [
        ("", ServerTiming()),
        ("read;dur=1.5, encode;dur=20, total;dur=30", ServerTiming({"read": 1.5, "encode": 20})),
        ('rows;desc="11.2"', ServerTiming(rows=11.2)),
        ("rows;desc=4", ServerTiming(rows=4)),
        ('Queue ; Dur = "3" ;desc="a, b; c=\\"d\\"",read;dur=1', ServerTiming({"queue": 3, "read": 1})),
        ('cache;desc="hit", read;dur=soon, queue;dur=inf, encode;dur, rows;desc="many", ,;', ServerTiming()),
        ("read;dur=1;dur;dur=2", ServerTiming({"read": 1})),
        ('read;desc="unfinished', ServerTiming()),
    ],
)
def test_reading_server_timing(header: str, timing: ServerTiming) -> None:
    assert parse_server_timing(header) == timing
