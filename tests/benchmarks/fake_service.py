"""A service that hears in a recording the text that it consists of."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.load.processes import metered
from benchmarks.load.service import Service
from benchmarks.speech_set import Clip

TIMING = 'read;dur=1, prepare;dur=0.5, queue;dur=0.25, total;dur=2, rows;desc="3.5"'
FILE = re.compile(rb'name="file".*?\r\n\r\n(.*?)\r\n--', re.DOTALL)


@dataclass
class FakeService:
    """delayed: until it is set, "slow" has no answer; bodies: of all requests; rows: that it says it holds."""

    delayed: threading.Event = field(default_factory=threading.Event)
    bodies: list[bytes] = field(default_factory=list)
    rows: Sequence[int] = (0,)

    def answer(self, body: bytes) -> tuple[int, str]:
        """→ status and text. "fail" is refused, and "fickle" is heard otherwise every time."""
        self.bodies.append(body)
        found = FILE.search(body)
        assert found is not None
        heard = found[1].decode()
        if heard == "slow":
            self.delayed.wait()
        return (500, "out of order") if heard == "fail" else (200, heard + str(len(self.bodies)) * (heard == "fickle"))


@contextmanager
def fake_service(fake: FakeService) -> Iterator[Service]:
    """As one whose only process is this one."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body together, or the client waits for the second half

        def do_POST(self) -> None:
            status, text = fake.answer(self.rfile.read(int(self.headers["Content-Length"])))
            content = json.dumps({"text": text}).encode()
            with contextlib.suppress(ConnectionError):  # the client has left
                self.send_response(status)
                self.send_header("Server-Timing", TIMING)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def do_GET(self) -> None:
            rows = (
                f'ray_rayscribe_rows_in_flight{{replica="{place}"}} {count}\n' for place, count in enumerate(fake.rows)
            )
            content = "".join(rows).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, metered(os.getpid()) as meter:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield Service(url, f"{url}/metrics", os.getpid(), meter)
        fake.delayed.set()
        server.shutdown()
        thread.join()


def text_clips(folder: Path, texts: Sequence[str]) -> list[Clip]:
    """Recordings for the fake, each of as many seconds as it has words."""
    clips = []
    for place, text in enumerate(texts):
        path = folder / f"{place}.txt"
        path.write_text(text)
        clips.append(Clip(str(place), path, text, None, "en", float(len(text.split())), "read", "high"))
    return clips
