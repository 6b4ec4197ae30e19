"""Check and time Rayscribe on the GPU of this machine, in minutes and without downloads.

python -m benchmarks.gpu_check --model small --minutes 6 --output gpu.md

Correctness comes first, of tiny.en, then times, with random weights of the model's shape. What the time does not
suffice for is left out and named. The exit code is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from asr.roofline import MODELS
from asr.sessions.cuda_graphs import capture_cuda_graph
from benchmarks.gpu import correctness, splitting
from benchmarks.gpu.correctness import Bench, NotRunError, Outcome
from benchmarks.gpu.model import QUICK_DIMS, checked_model, describe, utterances
from benchmarks.gpu.report import CheckResult, Report, known_gpu
from benchmarks.gpu.timing import Place, Plan, Timing, peak_bytes, release, time_cases

STEPS, QUICK_STEPS = 70, 6  # beyond the 64 tokens that a cache begins with
MIXES = ((0, 0), (1, 1, 1), (0, 1, 2, 3), (3, 2, 1, 0, 0), (2,) * 9, (*(0, 1, 2, 3) * 4, 1))
QUICK_MIXES = ((1, 1), (3, 1, 0))
LEAST_S = 5.0  # with less nothing is begun
TENSORRT_S = 100.0  # to build two plans of tiny.en, mostly


@dataclass(frozen=True)
class Check:
    """needs_s: seconds that it may take on a small GPU."""

    title: str
    run: Callable[[Bench], Outcome]
    needs_s: float = 20.0


class Budget:
    """The time that a run may take."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def allows(self, seconds: float) -> bool:
        return time.monotonic() + max(seconds, LEAST_S) <= self._end


def tensorrt(bench: Bench) -> Outcome:
    """TensorRT plans, where TensorRT itself is installed: TensorRT for RTX builds them only to see that it can."""
    if importlib.util.find_spec("tensorrt") is None:
        raise NotRunError("TensorRT is not installed")
    if bench.device.type != "cuda":
        raise NotRunError("no CUDA")
    from benchmarks.gpu import tensorrt as plans_on_gpu  # needs ONNX, which nothing else here does

    return plans_on_gpu.plans(bench)


CHECKS = (
    *(Check(f"as on the CPU, {name}", partial(correctness.parity, precision=name)) for name in ("fp32", "fp16")),
    *(
        Check(f"CUDA graphs as without, {name}", partial(correctness.graphs, precision=name))
        for name in ("fp32", "fp16")
    ),
    *(
        Check(f"rows as alone in any batch, {name}", partial(correctness.batches, precision=name))
        for name in ("fp32", "fp16")
    ),
    Check("a batch too large by estimate is split", splitting.by_estimate),
    Check("a batch that the device refuses is split", splitting.by_device),
)
LAST_CHECKS = (Check("TensorRT plans as on the CPU", tensorrt, TENSORRT_S),)


def run_checks(checks: Sequence[Check], bench: Bench, budget: Budget) -> Iterator[CheckResult]:
    """Each result as soon as it is there; a check that fails stops no other."""
    for check in checks:
        if not budget.allows(check.needs_s):
            yield CheckResult(check.title, "left out", "")
            continue
        print(f"{check.title} …", file=sys.stderr, flush=True)
        release(bench.device)
        try:
            outcome = check.run(bench)
        except NotRunError as reason:
            yield CheckResult(check.title, "not run", str(reason))
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what was to be found
            yield _failure(check.title, error)
        else:
            yield CheckResult(
                check.title, "passed" if outcome.passed else "failed", outcome.figures, peak_bytes(bench.device)
            )


def _failure(title: str, error: Exception) -> CheckResult:
    return CheckResult(title, "failed", f"{type(error).__name__}: {error}")


def run_timings(plan: Plan, place: Place, may_go_on: Callable[[float], bool]) -> tuple[list[Timing], list[CheckResult]]:
    """The times, and where taking them failed, that."""
    timings = []
    try:
        for timing in time_cases(plan, place, may_go_on):
            print(f"{timing.case}, {timing.decoder} {timing.note}", file=sys.stderr, flush=True)
            timings.append(timing)
    except Exception as error:  # noqa: BLE001  # what was found before is worth a report
        return timings, [_failure("times", error)]
    return timings, []


def report(device: torch.device, model: str, seconds: float, *, quick: bool) -> Report:
    """Run everything that the time allows."""
    budget = Budget(seconds)
    torch.backends.cudnn.allow_tf32 = False  # PyTorch's default for convolutions, but no fp32 to compare anything with
    checked = checked_model(quick=quick)
    heard = utterances(checked.dims.n_mels)
    capture = capture_cuda_graph if device.type == "cuda" else None
    steps, mixes = (QUICK_STEPS, QUICK_MIXES) if quick else (STEPS, MIXES)
    bench = Bench(checked, heard, device, capture, steps, mixes)
    place = Place(device, known_gpu(device), capture)
    plan = Plan(MODELS[model], ("fp16", "fp32"), positions=(400, 1500), batches=(1, 8, 16, 32), repeats=5)
    if quick:
        plan = Plan(QUICK_DIMS, ("fp32",), positions=(40, 100), batches=(1, 2), repeats=1)
    reserved_s = TENSORRT_S if importlib.util.find_spec("tensorrt") is not None and device.type == "cuda" else 0.0
    checks = list(run_checks(CHECKS, bench, budget))
    timings, failures = run_timings(plan, place, lambda needed_s: budget.allows(needed_s + reserved_s))
    checks += [*failures, *run_checks(LAST_CHECKS, bench, budget)]
    shape = f"the shape of {'a toy' if quick else f'Whisper {model}'}"
    timed = f"Random weights of {shape}; medians of {plan.repeats}; the floor is the roofline of `asr.roofline`."
    if device.type != "cuda":
        timed += " CUDA graphs not run: no CUDA."
    return Report(device, place.gpu, describe(checked, heard), timed, checks, timings)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__.splitlines()[0])
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"), help="cuda (default) or cpu")
    parser.add_argument("--model", choices=MODELS, default="small", help="whose shape is timed (%(default)s)")
    parser.add_argument("--minutes", type=float, default=6.0, help="that all of it may take (%(default)s)")
    parser.add_argument("--output", type=Path, help="write the document here as well")
    parser.add_argument("--quick", action="store_true", help="a toy model and hardly a repetition, to try the script")
    options = parser.parse_args(arguments)
    if options.device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --device cpu runs what needs none")
    device = torch.empty(0, device=options.device).device  # with its index, without which PyTorch sets no memory limit
    found = report(device, options.model, 60 * options.minutes, quick=options.quick)
    print(found)
    if options.output:
        options.output.write_text(str(found), encoding="utf-8")
    return int(found.has_failed)


if __name__ == "__main__":
    sys.exit(main())
