"""What a device can do at best: how fast it reads its memory and how fast it multiplies matrices.

Graphics processors come from their makers' datasheets, dense rates at boost clock: a rate "with sparsity" needs weights
of which half are zero, and is halved here. fp32 is plain fp32, not TF32, which keeps 10 of its 23 bits. No program gets
quite that far, which is what makes these figures good for lower bounds.

The processor that this runs on has no such sheet, so it is measured, in a second or two. Other work on the machine
lowers what is measured, and a model that fits into a cache beats the bandwidth of the memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Arithmetic: TypeAlias = Literal["fp32", "fp16", "int8"]

BUDGET_S = 0.15  # for each measurement
LONGEST_PRODUCT_S = 2.0  # above what a busy machine takes by native instructions, below what emulation does
MATRIX_SIZES = (128, 512, 2048)  # rows and columns of the square matrices multiplied
COPIED_BYTES = 256 * 1024**2  # more than the caches hold
VNNI_SPEEDUP = 4  # four int8 products in the place of one fp32 product


@dataclass(frozen=True)
class Device:
    """title: for people; bandwidth: of the memory, byte/s; peaks: dense matrix products, FLOP/s (int8: operations/s);
    memory: byte; note: how the figures were obtained, where that is not by datasheet."""

    title: str
    bandwidth: float
    peaks: Mapping[Arithmetic, float]
    memory: float
    note: str = ""


def _gpu(title: str, *, gbyte_s: float, tflops: tuple[float, float, float], gbyte: float) -> Device:
    """tflops: fp32, fp16, int8."""
    fp32, fp16, int8 = (1e12 * rate for rate in tflops)
    return Device(title, 1e9 * gbyte_s, {"fp32": fp32, "fp16": fp16, "int8": int8}, 1e9 * gbyte)


GPUS: Mapping[str, Device] = {
    # NVIDIA T4 product brief: 256 bit x 10 Gbit/s = 320 GB/s, which the datasheet rounds down to 300.
    "t4": _gpu("NVIDIA T4", gbyte_s=320, tflops=(8.1, 65, 130), gbyte=16),
    # NVIDIA A10G datasheet, published by AWS; its tensor rates are little more than half the A10's.
    "a10g": _gpu("NVIDIA A10G", gbyte_s=600, tflops=(35, 70, 140), gbyte=24),
    # NVIDIA L4 datasheet: fp16 242 and int8 485 with sparsity.
    "l4": _gpu("NVIDIA L4", gbyte_s=300, tflops=(30.3, 121, 242.5), gbyte=24),
    # NVIDIA A100 datasheet, 80 GB SXM; the PCIe card has 1935 GB/s, the 40 GB ones 1555.
    "a100": _gpu("NVIDIA A100 SXM 80 GB", gbyte_s=2039, tflops=(19.5, 312, 624), gbyte=80),
    # NVIDIA H100 datasheet, SXM: fp16 1979 and int8 3958 with sparsity.
    "h100": _gpu("NVIDIA H100 SXM", gbyte_s=3350, tflops=(67, 989.5, 1979), gbyte=80),
    # NVIDIA H200 datasheet, SXM: the processor of the H100 with more and faster memory.
    "h200": _gpu("NVIDIA H200 SXM", gbyte_s=4800, tflops=(67, 989.5, 1979), gbyte=141),
}


def this_cpu() -> Device:
    """Measure the processor, with as many threads as PyTorch uses."""
    fp32 = _matrix_rate(torch.float32, torch.mm)
    # bfloat16 stands for 16 bits: few processors multiply float16, and without a unit for either fp32 does it better.
    fp16 = max(fp32, _matrix_rate(torch.bfloat16, torch.mm))
    int8, int8_source = _int8_rate(fp32)
    return Device(
        title="this CPU",
        bandwidth=_bandwidth(),
        peaks={"fp32": fp32, "fp16": fp16, "int8": int8},
        memory=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        note=f"measured on {torch.get_num_threads()} threads; fp16 as bfloat16; int8 {int8_source}",
    )


def _int8_rate(fp32: float) -> tuple[float, str]:
    """→ operations/s, and how they were obtained."""
    try:
        rate = _matrix_rate(torch.int8, torch._int_mm)
    except (AttributeError, RuntimeError):  # private to PyTorch: it may go, or refuse this processor
        rate = 0.0
    if rate > fp32:
        return rate, "measured"
    return VNNI_SPEEDUP * fp32, f"assumed to be {VNNI_SPEEDUP} times fp32 (VNNI), as PyTorch measured none above fp32"


def _matrix_rate(dtype: torch.dtype, multiply: Callable[[Tensor, Tensor], Tensor]) -> float:
    """The best FLOP/s of a matrix product, over all sizes that can be expected not to take too long."""
    best = 0.0
    for size in MATRIX_SIZES:
        flops = 2 * size**3
        if best and flops / best > LONGEST_PRODUCT_S:
            break
        matrix = torch.ones(size, size, dtype=dtype)
        best = max(best, flops / _fastest(partial(multiply, matrix, matrix)))
    return best


def _bandwidth() -> float:
    """byte/s: the better of reading alone, as a decoder step does, and of reading and writing."""
    source = torch.ones(COPIED_BYTES // 4)
    target = torch.empty_like(source)
    return max(COPIED_BYTES / _fastest(source.sum), 2 * COPIED_BYTES / _fastest(lambda: target.copy_(source)))


def _fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest run within the budget, after one that is not counted."""
    work()
    fastest = float("inf")
    end = time.perf_counter() + BUDGET_S
    while fastest == float("inf") or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest
