"""The service as its users meet it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from asr.features import SAMPLE_RATE
from tests.audio_files import wav

pytestmark = pytest.mark.e2e

EXPORT_S = 60.0
OPENING = "it was the best of times it was the worst of times"


def transcribe(client: httpx.Client, content: bytes, **fields: str) -> httpx.Response:
    return client.post("/v1/audio/transcriptions", files={"file": content}, data={"model": "base", **fields})


def words(text: str) -> str:
    return " ".join(re.findall(r"[a-z']+", text.lower()))


def test_the_right_words_come_back(client: httpx.Client, speech: NDArray[np.float32]) -> None:
    response = transcribe(client, wav(speech))
    assert response.status_code == 200
    assert words(response.json()["text"]).startswith(OPENING)


def test_an_unmodified_openai_client_works(base_url: str, speech: NDArray[np.float32]) -> None:
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="none") as client:
        file = ("speech.wav", wav(speech[: 6 * SAMPLE_RATE]))
        transcription = client.audio.transcriptions.create(file=file, model="whisper-1", language="en")
        assert words(transcription.text).startswith("it was the best of times")
        with pytest.raises(openai.BadRequestError, match="not recognised as audio"):
            client.audio.transcriptions.create(file=("speech.wav", b"no audio at all"), model="whisper-1")


def test_text_format_ends_in_a_newline(client: httpx.Client, speech: NDArray[np.float32]) -> None:
    response = transcribe(client, wav(speech[: 6 * SAMPLE_RATE]), response_format="text")
    assert response.headers["content-type"].startswith("text/plain")
    assert words(response.text).startswith("it was the best of times")
    assert response.text.endswith("\n")


def test_the_time_is_accounted_for(client: httpx.Client, speech: NDArray[np.float32]) -> None:
    response = transcribe(client, wav(speech[: 6 * SAMPLE_RATE]), language="en")
    entries = response.headers["server-timing"].split(", ")
    assert entries.pop().startswith("rows;desc=")
    durations = [entry.split(";dur=") for entry in entries]
    *stages_ms, total_ms = (float(duration) for _, duration in durations)
    assert [stage for stage, _ in durations] == [
        "read",
        "prepare",
        "queue",
        "encode",
        "recognize",
        "assemble",
        "total",
    ]
    assert stages_ms[1] > 0
    assert sum(stages_ms) <= total_ms + 1


METRICS = {
    "ray_rayscribe_request_seconds_count",
    "ray_rayscribe_audio_seconds_total",
    "ray_rayscribe_rows_in_flight",
    "ray_rayscribe_utterances_waiting",
}


def test_prometheus_can_read_all_metrics(client: httpx.Client, metrics_url: str, speech: NDArray[np.float32]) -> None:
    assert transcribe(client, wav(speech[: 6 * SAMPLE_RATE]), language="en").status_code == 200
    deadline = time.monotonic() + EXPORT_S
    while missing := METRICS - {line.partition("{")[0] for line in httpx.get(metrics_url).text.splitlines()}:
        assert time.monotonic() < deadline, f"never exported: {missing}"
        time.sleep(0.5)


def test_silence_is_an_empty_text(client: httpx.Client) -> None:
    response = transcribe(client, wav(np.zeros(3 * SAMPLE_RATE, np.float32)))
    assert (response.status_code, response.json()) == (200, {"text": ""})


def test_a_large_recording_arrives(client: httpx.Client, speech: NDArray[np.float32]) -> None:
    """Between the sizes of the messages that processes send each other, and beyond them."""
    for megabytes in (1, 3, 9):
        silence = np.zeros((megabytes << 19) - 6 * SAMPLE_RATE, np.float32)
        response = transcribe(client, wav(np.concatenate((speech[: 6 * SAMPLE_RATE], silence))), language="en")
        assert response.status_code == 200
        assert words(response.json()["text"]).startswith("it was the best of times")


def test_a_broken_file_is_explained_to_the_client(client: httpx.Client) -> None:
    response = transcribe(client, b"<html>not found</html>")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "file"


def test_an_unknown_language_is_explained_to_the_client(client: httpx.Client, speech: NDArray[np.float32]) -> None:
    response = transcribe(client, wav(speech[:SAMPLE_RATE]), language="xx")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "language"


def test_health_and_docs_answer(client: httpx.Client) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/docs").status_code == 200
    assert client.get("/v1/models").json()["data"][0]["id"] == "base"


def sixteen_clips(speech: NDArray[np.float32]) -> list[bytes]:
    """Different stretches of different lengths, 1.5 to 5.2 s."""
    return [wav(speech[index * 2 * SAMPLE_RATE :][: int((1.5 + index / 4) * SAMPLE_RATE)]) for index in range(16)]


def texts(responses: Sequence[httpx.Response]) -> list[str]:
    assert [response.status_code for response in responses] == [200] * len(responses)
    return [response.json()["text"] for response in responses]


def test_sixteen_at_once_have_each_its_own_text_and_are_faster_than_one_by_one(
    client: httpx.Client, speech: NDArray[np.float32]
) -> None:
    clips = sixteen_clips(speech)
    transcribe(client, clips[0], language="en")
    start = time.perf_counter()
    alone = texts([transcribe(client, clip, language="en") for clip in clips])
    one_by_one_s = time.perf_counter() - start
    with ThreadPoolExecutor(len(clips)) as pool:
        start = time.perf_counter()
        together = texts(list(pool.map(lambda clip: transcribe(client, clip, language="en"), clips)))
        at_once_s = time.perf_counter() - start
    assert len(set(alone)) == len(clips)
    assert together == alone
    assert at_once_s < one_by_one_s


def recognizer_pids() -> list[int]:
    """Of the processes that hold the model, by the title that Serve gives them."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = path.read_bytes()
        except OSError:  # it has just ended
            continue
        if title.startswith(b"ray::ServeReplica:e2e:Recognizer"):
            pids.append(int(path.parent.name))
    return pids


def test_requests_survive_the_death_of_the_recognizer(client: httpx.Client, speech: NDArray[np.float32]) -> None:
    clips = sixteen_clips(speech)[:8]
    expected = texts([transcribe(client, clip, language="en") for clip in clips])
    (pid,) = recognizer_pids()
    with ThreadPoolExecutor(len(clips)) as pool:
        running = [pool.submit(transcribe, client, clip, language="en") for clip in clips]
        os.kill(pid, signal.SIGKILL)
        during = texts([request.result() for request in running])
    after = texts([transcribe(client, clip, language="en") for clip in clips])
    assert during == after == expected
    assert recognizer_pids() != [pid]
    assert client.get("/health").status_code == 200
