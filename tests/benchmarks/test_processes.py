"""What processes use, as seen from outside, and that none is left behind."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.load import service as services
from benchmarks.load.alone import own_process
from benchmarks.load.processes import Meter, memory_of, process_tree
from benchmarks.load.service import ServiceError, running_service

MIB = 1 << 20
HOLDS_MEMORY = """
import subprocess, sys
held = bytearray(b"x") * (64 << 20)
child = subprocess.Popen([sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"], stdin=-1, stdout=-1)
child.stdout.readline()
print(sum(range(2_000_000)), flush=True)
sys.stdin.read()
child.communicate()
"""
SERVES = """
import http.server, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
assert sys.argv[1::2][:2] == ["--port", "--metrics-port"] and sys.argv[5:] == ["model=tiny.en", "threads=2"], sys.argv
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    """A process of 64 MiB with a child."""
    command = [sys.executable, "-c", HOLDS_MEMORY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.communicate()


def test_memory_is_of_the_process_and_its_descendants(parent: subprocess.Popen[bytes]) -> None:
    large, small = memory_of(parent.pid)

    assert large.pid == parent.pid
    assert psutil.Process(small.pid).ppid() == parent.pid
    assert 64 * MIB < large.uss <= large.pss <= large.rss < 150 * MIB
    assert small.uss <= small.pss <= small.rss < 64 * MIB


def test_a_meter_counts_from_when_it_is_asked_for(parent: subprocess.Popen[bytes]) -> None:
    meter = Meter(parent.pid)
    meter.sample()
    start_s = time.monotonic()
    usage = meter.usage(start_s, time.monotonic())

    assert 0 <= usage.cpu_s < 0.5
    assert 64 * MIB < usage.peak_bytes < 250 * MIB


def test_processor_time_of_what_has_ended_stays() -> None:
    meter = Meter(os.getpid())
    meter.sample()
    start_s = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", "print(sum(range(20_000_000)), flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        spent = sum(psutil.Process(busy.pid).cpu_times()[:2])
        meter.sample()
        busy.communicate(b"\n")

    assert meter.usage(start_s, time.monotonic()).cpu_s >= 0.9 * spent > 0


def test_a_process_that_is_gone_uses_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    assert process_tree(process.pid) == []
    assert memory_of(process.pid) == []


def test_functions_run_in_a_process_of_their_own() -> None:
    with own_process() as process:
        pid = process.run(os.getpid)
        assert pid != os.getpid()
        assert process.run(os.getpid) == pid
        assert memory_of(pid)
        with pytest.raises(ValueError, match=r"math domain error|nonnegative"):
            process.run(math.sqrt, -1)
    assert not psutil.pid_exists(pid)


# --- the service


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is started in place of the service."""
    path = tmp_path / "program.py"
    monkeypatch.setattr(services, "COMMAND", (sys.executable, str(path)))
    monkeypatch.setattr(services, "POLL_S", 0.05)
    return path


def test_a_service_ends_with_all_its_processes(program: Path) -> None:
    program.write_text(SERVES)
    with running_service("tiny.en", ["threads=2"]) as service:
        root, child = process_tree(service.pid)
        assert os.getpgid(root.pid) == root.pid != os.getpgid(0)
        assert [process.name for process in memory_of(service.pid)] == ["program.py", root.name()]

    assert not root.is_running()
    child.wait(5)  # it was adopted, and is gone once that has been noticed
    assert not child.is_running()


def test_a_service_that_does_not_start_says_why(program: Path) -> None:
    program.write_text("raise SystemExit('no such model')")
    with pytest.raises(ServiceError, match=r"ended with status 1:\nno such model"), running_service("small", []):
        pass
