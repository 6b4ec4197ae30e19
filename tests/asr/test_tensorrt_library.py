"""Which TensorRT is found, and what becomes of what it says."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from asr.errors import ArtefactError
from asr.tensorrt_library import MODULES, Message, MessageLog, TensorRTLibrary, load_tensorrt

load_anew: Callable[[], TensorRTLibrary] = load_tensorrt.__wrapped__
"""Without the memory of what was found before."""


class Severity:
    """As much of TensorRT's enumeration as a logger needs."""

    WARNING = 2


def bindings(version: str) -> ModuleType:
    """A module that could pass for TensorRT's."""
    module = ModuleType("bindings")
    vars(module).update(__version__=version, ILogger=type("ILogger", (), {"Severity": Severity}))
    return module


def test_full_tensorrt_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", bindings("11.4.0"))
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", bindings("1.7.1"))

    assert str(load_anew()) == "TensorRT 11.4.0"


def test_tensorrt_for_rtx_does_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", bindings("1.7.1"))

    assert str(load_anew()) == "TensorRT for RTX 1.7.1"


def test_none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ArtefactError, match=r"install rayscribe\[tensorrt\] .* else tensorrt-rtx-cu12-bindings"):
        load_anew()


@pytest.mark.parametrize(
    "code", ["raise ImportError('libnvinfer')", "raise OSError('libnvinfer')", "import libnvinfer"]
)
def test_a_broken_one_is_not_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    (tmp_path / "tensorrt.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", bindings("1.7.1"))
    with pytest.raises(ArtefactError, match=r"^TensorRT: is installed but cannot be loaded \(.*libnvinfer"):
        load_anew()


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    code = "import sys, asr.loading, asr.build.plan, asr.sessions.tensorrt; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert "asr.sessions.tensorrt" in modules
    assert not set(MODULES) & set(modules)


# --- what it says


def test_the_logger_keeps_warnings_and_worse(tensorrt: TensorRTLibrary) -> None:
    severity = tensorrt.module.ILogger.Severity
    with tensorrt.messages.collect() as messages:
        for level in (severity.INTERNAL_ERROR, severity.ERROR, severity.WARNING, severity.INFO, severity.VERBOSE):
            tensorrt.logger.log(level, f"as {level.name}")

    assert [str(message) for message in messages] == [
        "INTERNAL_ERROR: as INTERNAL_ERROR",
        "ERROR: as ERROR",
        "WARNING: as WARNING",
    ]


def test_each_collects_what_is_said_meanwhile() -> None:
    log = MessageLog()
    first, second, third = (Message("ERROR", text) for text in ("first", "second", "third"))
    with log.collect() as outer:
        log.add(first)
        with log.collect() as inner:
            log.add(second)
        log.add(third)

    assert (outer, inner) == ([first, second, third], [second])


def test_what_nobody_collects_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = MessageLog()
    with caplog.at_level(logging.WARNING):
        log.add(Message("ERROR", "while no one asked"))
        with log.collect():
            log.add(Message("ERROR", "while someone listened"))

    assert caplog.messages == ["ERROR: while no one asked"]
