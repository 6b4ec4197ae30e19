"""The least time that this processor could take for what an engine did: `asr.roofline`, at the lengths of the clips."""

from __future__ import annotations

import torch

from asr.build.recipe import Backend, Precision
from asr.devices import Device, this_cpu
from asr.processors import usable_cpus
from asr.roofline import PRECISIONS, floor
from benchmarks.load.engine import EngineRun

ON_CPU = ("auto", "onnx", "openvino")


def floor_ms(run: EngineRun, cpu: Device, backend: Backend, precision: Precision, rows: float | None) -> float | None:
    """Mean over the clips of a run, each with its own positions and tokens; None where it is not known.

    rows: that were decoded at a time.
    """
    formats = PRECISIONS.get(_roofline(backend, precision))
    clips = [run.work[answer.place] for answer in run.window.counted if answer.text is not None]
    if backend not in ON_CPU or formats is None or rows is None or not clips:
        return None
    batch = max(1, round(rows))
    floors = (
        floor(run.dims, cpu, formats, batch=batch, positions=row.positions, tokens=row.tokens)
        for work in clips
        for row in work
    )
    return sum(one.row_ms for one in floors) / len(clips)


def measured_cpu() -> Device:
    """This processor, measured on all that may be used of it: silero_vad leaves PyTorch a single thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(usable_cpus())
    try:
        return this_cpu()
    finally:
        torch.set_num_threads(threads)


def in_words(cpu: Device) -> str:
    """What the processor can do at best."""
    rates = ", ".join(f"{name} {rate / 1e12:.2f}" for name, rate in cpu.peaks.items())
    return f"{cpu.bandwidth / 1e9:.0f} GB/s; TFLOP/s: {rates}; {cpu.note}"


def _roofline(backend: Backend, precision: Precision) -> str:
    """In 16 bits what is not in int8, unless nothing but ONNX Runtime computes, which has float32 for it."""
    if precision == "int8":
        return "int8-cpu" if backend == "onnx" else "int8"
    return "fp16" if precision == "bf16" else precision
