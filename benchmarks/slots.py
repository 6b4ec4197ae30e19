"""What it costs to keep the rows in flight: slots that a graph reads in place, against pages that every step gathers.

    python -m benchmarks.slots --model base

A decoder graph reads the keys and values of its rows as one tensor for each layer. `asr.slots` keeps them so, and
copies a row once, when it takes the place of one that left. Pages of 128 tokens, as servers keep them whose kernels
follow a page table, would have to be gathered into such tensors for every step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from asr.build.artefacts import ensure_artefacts
from asr.build.recipe import Recipe
from asr.checkpoint import load_checkpoint
from asr.kv_cache import KvCache
from asr.lane import Encoded, Lane
from asr.loading import cpu_session
from asr.model import Dims
from asr.openvino_library import cpu_backend
from asr.processors import usable_cpus
from asr.session import Session
from benchmarks.accuracy import cpu_name

PAGE = 128
POSITIONS = 424  # of an utterance of about 5 s
LENGTH = 40  # tokens that a row has on average
REPEATS = 30


def lane_of(session: Session, dims: Dims, rows: int) -> Lane[int]:
    """A lane in the middle of its texts."""
    heads, head_dim = dims.n_text_head, dims.head_dim
    shapes = {"key": (rows, heads, head_dim, POSITIONS), "value": (rows, heads, POSITIONS, head_dim)}
    cross = {
        f"cross_{part}_{layer}": torch.randn(shape).to(session.dtype)
        for layer in range(dims.n_text_layer)
        for part, shape in shapes.items()
    }
    cache = KvCache(dims, rows, session.device, session.dtype)
    cache.lengths += LENGTH
    lane: Lane[int] = Lane(dims, 2 * POSITIONS, session.device, session.dtype)
    encoded = Encoded(cross, torch.zeros(rows, POSITIONS, dtype=session.dtype))
    lane.join(list(range(rows)), encoded, cache)
    return lane


def step_ms(session: Session, lane: Lane[int]) -> float:
    token = torch.zeros(len(lane.rows), 1, dtype=torch.int64)
    return median_ms(lambda: session.run({"tokens": token, "logit_positions": token, **lane.inputs()}))


def leave_ms(session: Session, dims: Dims, rows: int) -> float:
    """Of one row that leaves, the last taking its place."""
    lane = lane_of(session, dims, rows)
    times = []
    for row in range(rows // 2):
        start = time.perf_counter()
        lane.leave(row)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def page_gather_ms(session: Session, dims: Dims, rows: int) -> float:
    """Of the self-attention pages of all rows into the tensors of a step, from a pool in random order."""
    pool = torch.randn(2 * rows, dims.n_text_layer, 2, dims.n_text_head, PAGE, dims.head_dim).to(session.dtype)
    pages = torch.randperm(2 * rows)[:rows]
    return median_ms(lambda: pool[pages].permute(1, 2, 0, 3, 4, 5).contiguous())


def cross_gather_ms(lane: Lane[int]) -> float:
    """Of the cross-attention keys and values of all rows, if those had pages too."""
    cross = [value for name, value in lane.inputs().items() if name.startswith("cross_")]
    order = torch.randperm(len(lane.rows))
    return median_ms(lambda: [value[order] for value in cross])


def median_ms(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slots", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="base")
    parser.add_argument("--cache", type=Path, help="folder of built models")
    options = parser.parse_args(arguments)
    checkpoint = load_checkpoint(options.model)
    recipe = Recipe("int8", cpu_backend("int8"))
    decoder = cpu_session(ensure_artefacts(checkpoint, recipe, options.cache).decoder, recipe, usable_cpus())
    torch.set_num_threads(usable_cpus())
    print(f"{options.model} int8 on {cpu_name()}, {usable_cpus()} processors, {type(decoder).__name__}; ms.\n")
    print("| rows | a step | gathering pages of self-attention | and of cross-attention | a row that leaves, once |")
    print("|---:|---:|---:|---:|---:|")
    for rows in (2, 8, 16, 32):
        lane = lane_of(decoder, checkpoint.dims, rows)
        times = [
            step_ms(decoder, lane),
            page_gather_ms(decoder, checkpoint.dims, rows),
            cross_gather_ms(lane),
            leave_ms(decoder, checkpoint.dims, rows),
        ]
        print(f"| {rows} | " + " | ".join(f"{value:.2f}" for value in times) + " |", flush=True)


if __name__ == "__main__":
    main()
