"""The service under load: starts it, sends it a speech set's clips with so many requests at a time, and reports.

python -m benchmarks.load --model base --speech DIR --concurrency 1 4 16
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from asr.processors import usable_cpus
from benchmarks.accuracy import cpu_name
from benchmarks.scoring import score_clip, total
from benchmarks.speech_set import DEFAULT_SPEECH, Clip, SpeechSetError, read_speech_set
from benchmarks.systems import UnavailableError, faster_whisper

REQUEST_TIMEOUT_S = 300
LONGEST_S = 16.0
"""Of the clips that are sent: utterances, as a live service gets them."""


@dataclass(frozen=True)
class Measurement:
    """seconds: latency of every request; texts: what came back, in the order of the clips; wall_s: for all of them."""

    name: str
    seconds: Sequence[float]
    texts: Sequence[str]
    wall_s: float

    def row(self, clips: Sequence[Clip]) -> str:
        audio_s = sum(clip.duration_s for clip in clips)
        centiles = statistics.quantiles(self.seconds, n=100)
        scores = total(score_clip(clip, text) for clip, text in zip(clips, self.texts, strict=True))
        cells = [
            f"{len(clips) / self.wall_s:.1f}",
            f"{audio_s / self.wall_s:.1f}",
            *(f"{1000 * centiles[centile - 1]:.0f}" for centile in (50, 95)),
            f"{100 * scores.rate:.2f}",
        ]
        return f"| {self.name} | " + " | ".join(cells) + " |"


HEADER = "| | clips/s | audio s/s | p50 ms | p95 ms | WER % |\n|---|---:|---:|---:|---:|---:|"


@contextmanager
def service(model: str, settings: Sequence[str]) -> Iterator[str]:
    """The URL of a service that runs for as long as the context lasts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "serve_app", "--port", str(port), f"model={model}", *settings]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
    try:
        url = f"http://127.0.0.1:{port}"
        while not is_healthy(url):
            if process.poll() is not None:
                raise RuntimeError(f"the service ended with status {process.returncode} before it was ready")
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait()


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=10).is_success
    except httpx.TransportError:
        return False


def load(url: str, clips: Sequence[Clip], concurrency: int, model: str) -> Measurement:
    """Closed loop: as many requests under way as `concurrency`, each followed by the next."""
    contents = [clip.path.read_bytes() for clip in clips]

    def send(index: int) -> tuple[float, str]:
        start = time.perf_counter()
        fields = {"model": model, "language": clips[index].language or ""}
        response = client.post(f"{url}/v1/audio/transcriptions", files={"file": contents[index]}, data=fields)
        response.raise_for_status()
        return time.perf_counter() - start, str(response.json()["text"])

    with httpx.Client(timeout=REQUEST_TIMEOUT_S) as client, ThreadPoolExecutor(concurrency) as pool:
        start = time.perf_counter()
        answers = list(pool.map(send, range(len(clips))))
        wall_s = time.perf_counter() - start
    seconds, texts = zip(*answers, strict=True)
    return Measurement(f"Rayscribe over HTTP, {concurrency} at a time", seconds, texts, wall_s)


def peer(clips: Sequence[Clip], model: str) -> Measurement:
    """faster-whisper in this process, one clip after the other."""
    seconds, texts = [], []
    with faster_whisper(model, None) as transcribe:
        transcribe(clips[:1])
        for clip in clips:
            start = time.perf_counter()
            texts += [str(text) for text in transcribe([clip])]
            seconds.append(time.perf_counter() - start)
    return Measurement("faster-whisper int8 in process, one at a time", seconds, texts, sum(seconds))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="base")
    parser.add_argument("--speech", type=Path, default=DEFAULT_SPEECH, help="folder of a speech set")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings of the service")
    options = parser.parse_args(arguments)
    try:
        clips = [clip for clip in read_speech_set(options.speech) if clip.duration_s <= LONGEST_S and in_table(clip)]
    except SpeechSetError as error:
        parser.error(str(error))
    audio_s = sum(clip.duration_s for clip in clips)
    print(f"{options.model} on {cpu_name()}, {usable_cpus()} processors; {len(clips)} clips, {audio_s:.0f} s.\n")
    print(HEADER, flush=True)
    with service(options.model, options.settings) as url:
        load(url, clips[:8], 4, options.model)  # first-time allocations are not measured
        for concurrency in options.concurrency:
            print(load(url, clips, concurrency, options.model).row(clips), flush=True)
    try:
        print(peer(clips, options.model).row(clips))
    except UnavailableError as error:
        print(f"\nLeft out: {error}")


def in_table(clip: Clip) -> bool:
    """English with a certain text: what every model can do, and one unit to count errors by."""
    return clip.language == "en" and len(clip.groups) > 1


if __name__ == "__main__":
    main()
