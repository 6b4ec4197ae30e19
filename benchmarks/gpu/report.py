"""What a check of a GPU found, as a Markdown document."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal

import torch

from asr.devices import GPUS, Device
from benchmarks.gpu.timing import Timing

MIB = 1 << 20
COLUMNS = ("precision", "positions", "batch", "decoder", "encoder ms", "step ms", "tokens", "ms a row")
FLOOR_COLUMNS = ("floor ms a row", "ratio")


@dataclass(frozen=True)
class CheckResult:
    """detail: what was found, or why nothing was; peak_bytes: of device memory."""

    title: str
    status: Literal["passed", "failed", "not run", "left out"]
    detail: str
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Report:
    """checked, timed: what with, in words; gpu: what the device can do at best, if that is known."""

    device: torch.device
    gpu: Device | None
    checked: str
    timed: str
    checks: Sequence[CheckResult]
    timings: Sequence[Timing]

    @property
    def has_failed(self) -> bool:
        return any(check.status == "failed" for check in self.checks)

    def __str__(self) -> str:
        parts = ["# GPU check", _table(("", ""), [*_machine(self.device), *self._memory()]), "## Checks", self.checked]
        rows = [(check.title, check.status, _cell(check.detail), _mib(check.peak_bytes)) for check in self.checks]
        parts.append(_table(("check", "result", "figures", "peak MiB"), rows))
        parts += ["## Times", self.timed, self._times()]
        left_out = list(self._left_out())
        if left_out:
            parts += ["## Left out for want of time", "\n".join(f"- {what}" for what in left_out)]
        return "\n\n".join(parts) + "\n"

    def _memory(self) -> Iterator[tuple[str, str]]:
        sizes = [check.peak_bytes or 0 for check in self.checks] + [timing.peak_bytes or 0 for timing in self.timings]
        if any(sizes):
            yield "peak memory", f"{_mib(max(sizes))} MiB"

    def _times(self) -> str:
        columns = [*COLUMNS, *(FLOOR_COLUMNS if self.gpu else ()), "peak MiB", "note"]
        return _table(columns, [_row(timing, has_floor=self.gpu is not None) for timing in self.timings])

    def _left_out(self) -> Iterator[str]:
        yield from (check.title for check in self.checks if check.status == "left out")
        yield from (f"times of {timing.case}" for timing in self.timings if timing.left_out)


def known_gpu(device: torch.device) -> Device | None:
    """The datasheet of this device, if `asr.devices` has it."""
    if device.type != "cuda":
        return None
    return gpu_named(torch.cuda.get_device_name(device))


def gpu_named(name: str) -> Device | None:
    """By the name that its driver gives it, such as "NVIDIA A100-SXM4-80GB"."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return next((GPUS[word] for word in words if word in GPUS), None)


def _machine(device: torch.device) -> Iterator[tuple[str, str]]:
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        yield "GPU", f"{torch.cuda.get_device_name(device)}, {_mib(memory)} MiB"
        yield "driver", _driver()
    else:
        yield "GPU", "none: on the CPU"
    yield "PyTorch", f"{torch.__version__}, CUDA {torch.version.cuda or 'not built in'}"
    yield "Python", f"{platform.python_version()} on {platform.system()}"
    yield "date", datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _driver() -> str:
    command = shutil.which("nvidia-smi")
    if command is None:
        return "unknown, without nvidia-smi"
    query = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({error})"
    return answer.stdout.split("\n")[0].strip()


def _row(timing: Timing, *, has_floor: bool) -> list[str]:
    case, row_ms = timing.case, timing.row_ms
    figures = [_ms(timing.encoder_s), _ms(timing.step_s), str(case.tokens), "" if row_ms is None else f"{row_ms:.2f}"]
    if has_floor:
        ratio = "" if row_ms is None or timing.floor_ms is None else f"{row_ms / timing.floor_ms:.2f}"
        figures += ["" if timing.floor_ms is None else f"{timing.floor_ms:.2f}", ratio]
    return [
        case.precision,
        str(case.positions),
        str(case.batch),
        timing.decoder,
        *figures,
        _mib(timing.peak_bytes),
        _cell(timing.note),
    ]


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.2f}"


def _mib(size: int | None) -> str:
    return "" if size is None else f"{size / MIB:.0f}"


def _cell(text: str) -> str:
    """On one line, and without what would end a column."""
    return " ".join(text.split()).replace("|", "\\|")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
