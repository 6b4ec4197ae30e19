"""Whether TensorRT plans compute what the CPU does, and how long they take."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from asr.build.export import dimension_ranges, export_decoder, export_encoder
from asr.build.half import to_half
from asr.build.plan import PlanOptions, build_plan, decoder_profiles, encoder_profiles
from asr.build.samples import decoder_sample, encoder_sample
from asr.engine import encode
from asr.sessions.cuda_graphs import GraphedSession, capture_cuda_graph
from asr.sessions.tensorrt import TensorRTSession
from asr.tensorrt_library import load_tensorrt
from benchmarks.gpu.correctness import TOLERANCES, Bench, CountedCapture, Outcome, agreement, relative_error
from benchmarks.gpu.timing import Case, time_encoder, time_step

OPTIONS = PlanOptions(optimization_level=2)  # faster to build, perhaps slower to run
MAX_BATCH, FRAMES = 32, (280, 800, 3000)
TIMED = (8, 400)  # rows and encoder positions
REPEATS = 5


def plans(bench: Bench, options: PlanOptions = OPTIONS) -> Outcome:
    """Encoder and decoder as plans, in float16 where ModelOpt is installed, against float32 on the CPU."""
    precision = "fp16" if importlib.util.find_spec("modelopt") is not None else "fp32"
    with TemporaryDirectory() as folder:
        started = time.perf_counter()
        paths = _build(bench, Path(folder), precision, options)
        build_s = time.perf_counter() - started
        encoder, decoder = (TensorRTSession(path, bench.device) for path in paths)
    reference, tolerance = bench.reference, TOLERANCES["fp16"]  # TensorRT takes TF32 for fp32 where a GPU has it
    cross = encode(encoder, bench.utterances).cross
    encoder_error = max(relative_error(cross[name], value) for name, value in reference.cross.items())
    counted = CountedCapture(bench.capture or capture_cuda_graph)
    graphed = GraphedSession(decoder, bench.model.dims, counted)
    eager_and_graphed = [
        agreement(bench.decode(encoder, session, bench.utterances, reference.texts), reference.logits)
        for session in (decoder, graphed)
    ]
    passed = (
        encoder_error <= tolerance
        and all(found.within(tolerance) for found in eager_and_graphed)
        and counted.replays - counted.captures == bench.steps - 1
    )
    eager, by_graphs = eager_and_graphed
    figures = (
        f"{load_tensorrt()}, {precision}, built in {build_s:.0f} s: encoder off by {encoder_error:.1e}, {eager}; "
        f"by CUDA graphs {by_graphs}; {_times(bench, precision, encoder, decoder, graphed)}"
    )
    return Outcome(passed, figures)


def _build(bench: Bench, folder: Path, precision: str, options: PlanOptions) -> list[Path]:
    dims = bench.model.dims
    graphs = {"encoder": folder / "encoder.onnx", "decoder": folder / "decoder.onnx"}
    export_encoder(bench.model.encoder, dims, graphs["encoder"])
    export_decoder(bench.model.decoder, dims, graphs["decoder"])
    if precision == "fp16":
        samples = {"encoder": encoder_sample(dims), "decoder": decoder_sample(dims)}
        for name, path in graphs.items():
            onnx.save_model(to_half(path, samples[name]), path)
    profiles = {
        "encoder": encoder_profiles(dims, MAX_BATCH, FRAMES),
        "decoder": decoder_profiles(dims, MAX_BATCH, FRAMES),
    }
    built = []
    for name, path in graphs.items():
        built.append(path.with_suffix(".plan"))
        built[-1].write_bytes(build_plan(path, profiles[name], dimension_ranges(dims), options))
    return built


def _times(
    bench: Bench, precision: str, encoder: TensorRTSession, decoder: TensorRTSession, graphed: GraphedSession
) -> str:
    batch, positions = TIMED
    case, dims = Case(precision, positions, batch), bench.model.dims
    encoder_s, encoded = time_encoder(encoder, dims, case, REPEATS)
    eager_s, graphed_s = (time_step(session, dims, case, encoded, REPEATS) for session in (decoder, graphed))
    return (
        f"at batch {batch} and {positions} positions encoder {1000 * encoder_s:.2f} ms, "
        f"step {1000 * eager_s:.2f} ms, by CUDA graphs {1000 * graphed_s:.2f} ms"
    )
