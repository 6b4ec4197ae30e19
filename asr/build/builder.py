"""From a checkpoint and a recipe to a directory of graphs or TensorRT plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import onnx
from onnx import ModelProto

from asr.build import export, per_token
from asr.build.calibration import (
    MANIFEST,
    MAX_RECORDINGS,
    Activation,
    Recording,
    evenly,
    full_windows,
    observe,
    read_recordings,
)
from asr.build.error_rate import require_jiwer
from asr.build.half import require_modelopt, to_half
from asr.build.plan import PlanOptions, Profile, build_plan, decoder_profiles, encoder_profiles
from asr.build.products import HEAD, products_of
from asr.build.qdq import insert_qdq
from asr.build.recipe import Recipe, TensorRTSettings
from asr.build.samples import decoder_sample, encoder_sample
from asr.build.sensitivity import Choice, Placement, choose_placement
from asr.build.smoothing import smooth
from asr.checkpoint.normalised import Checkpoint, sha256_of
from asr.errors import ArtefactError
from asr.model import Decoder, Encoder

GRAPHS = ("encoder", "decoder")
MIN_SIGNAL_TO_NOISE_DB = 22.0
"""Of an activation in one int8 range; products with less stay out of int8 unless measured otherwise. In Whisper base
there is a gap: what the second feed-forward layers read has 4 to 21 dB, since a few of its values are a hundred times
as large as the others; everything else has 27 or more."""
SUFFIXES = {"onnx": ".onnx", "tensorrt": ".plan"}

Step: TypeAlias = Callable[[str], None]
"""Called with what has just been done."""


@dataclass(frozen=True)
class GraphSummary:
    """One built file. quantized: products in int8 (or with int8 weights), of `products`; seconds: to make it from the
    float32 graph; graph_sha256: of the ONNX graph that the file is or was made of."""

    graph: str
    precision: str
    quantized: int
    products: int
    bytes: int
    seconds: float
    graph_sha256: str


@dataclass(frozen=True)
class Built:
    """placement: names of the products in int8 by graph; choice: how mixed precision came to it, if it is mixed."""

    graphs: tuple[GraphSummary, ...]
    placement: Placement
    choice: Choice | None


def build(checkpoint: Checkpoint, recipe: Recipe, directory: Path, *, threads: int, done: Step) -> Built:
    """Write encoder and decoder into `directory`, as .onnx or .plan.

    Raises:
        CheckpointError: the weights cannot be read.
        ArtefactError: something that the recipe needs is missing (a calibration set, ModelOpt, TensorRT), or fails.
        ValueError: the model has no such frames as a plan is asked for.
    """
    _check(checkpoint, recipe)
    encoder, decoder = checkpoint.modules()
    done("weights read")
    activations: Mapping[str, Activation] = {}
    if recipe.needs_calibration and recipe.resolved_activations == "calibrated":
        activations = _calibrate(checkpoint, recipe, encoder, decoder)
        done("calibrated")
    exported = {graph: directory / f"{graph}.onnx" for graph in GRAPHS}
    export.export_encoder(encoder, checkpoint.dims, exported["encoder"])
    export.export_decoder(decoder, checkpoint.dims, exported["decoder"])
    done("exported")
    quantizers = {graph: _quantizer(graph, recipe, activations) for graph in GRAPHS}
    if recipe.precision == "mixed":
        choice = _measured_placement(checkpoint, recipe, exported, quantizers, threads)
        placement = choice.placement
        done("placement chosen")
    else:
        choice = None
        placement = {graph: _placement(graph, path, recipe, activations) for graph, path in exported.items()}
    summaries = []
    for graph in GRAPHS:
        summaries.append(_finish(checkpoint, recipe, graph, exported[graph], quantizers[graph], placement[graph]))
        done(f"{graph} made")
    return Built(tuple(summaries), placement, choice)


def _check(checkpoint: Checkpoint, recipe: Recipe) -> None:
    """Find what is missing before minutes of work, rather than after."""
    if recipe.needs_calibration:
        _calibration_set(recipe)
    if recipe.precision == "mixed":
        _labelled_recordings(recipe)
        require_jiwer()
    if recipe.is_half:
        require_modelopt()
    if recipe.backend == "tensorrt":
        for graph in GRAPHS:
            _profiles(checkpoint, graph, recipe.tensorrt or TensorRTSettings())


Quantizer: TypeAlias = Callable[[ModelProto, frozenset[str]], ModelProto]


def _calibrate(checkpoint: Checkpoint, recipe: Recipe, encoder: Encoder, decoder: Decoder) -> Mapping[str, Activation]:
    """Observe activations, smooth the modules by them, and observe what is left."""
    recordings = evenly(read_recordings(_calibration_set(recipe)), MAX_RECORDINGS)
    utterances = full_windows(recordings, checkpoint, trailing_silence=recipe.trailing_silence)
    smooth(encoder, decoder, observe(encoder, decoder, checkpoint, utterances))
    return observe(encoder, decoder, checkpoint, utterances, recipe.range_method)


def _calibration_set(recipe: Recipe) -> Path:
    if recipe.calibration is None:
        raise ArtefactError(
            f"{recipe.backend} {recipe.precision}",
            "needs a calibration set: "
            f"python -m asr.build --backend {recipe.backend} --precision {recipe.precision} --calibration FOLDER",
        )
    return recipe.calibration


def _labelled_recordings(recipe: Recipe) -> list[Recording]:
    calibration_set = _calibration_set(recipe)
    recordings = [recording for recording in read_recordings(calibration_set) if recording.text]
    if not recordings:
        raise ArtefactError(str(calibration_set), f"has no texts to count errors with, as a {MANIFEST} can")
    return recordings


def _quantizer(graph: str, recipe: Recipe, activations: Mapping[str, Activation]) -> Quantizer:
    """How products of this graph become int8, in float32 and float16 graphs alike."""
    if recipe.precision == "int8-weights":
        return lambda model, names: insert_qdq(model, dict.fromkeys(names))
    if recipe.resolved_activations == "per-token":
        return partial(per_token.quantize_per_token, signed_weights=per_token.has_exact_u8s8())
    ranges = {
        name.removeprefix(f"{graph}."): activation.range
        for name, activation in activations.items()
        if name.startswith(f"{graph}.")
    }
    return lambda model, names: insert_qdq(model, {name: ranges[name] for name in names})


def _placement(graph: str, path: Path, recipe: Recipe, activations: Mapping[str, Activation]) -> frozenset[str]:
    """What is in int8 without having been measured."""
    names = frozenset(products_of(onnx.load(path)))
    if not recipe.has_int8:
        return frozenset()
    if recipe.precision == "int8" and recipe.resolved_activations == "per-token":
        return names
    if recipe.precision == "int8-weights":
        return names if recipe.backend == "onnx" else names - {HEAD}
    return frozenset(
        name for name in names - {HEAD} if activations[f"{graph}.{name}"].signal_to_noise_db >= MIN_SIGNAL_TO_NOISE_DB
    )


def _measured_placement(
    checkpoint: Checkpoint,
    recipe: Recipe,
    exported: Mapping[str, Path],
    quantizers: Mapping[str, Quantizer],
    threads: int,
) -> Choice:
    kept = {HEAD} if recipe.resolved_activations == "calibrated" else set()  # HEAD has no range
    return choose_placement(
        checkpoint,
        exported,
        {graph: frozenset(products_of(onnx.load(path))) - kept for graph, path in exported.items()},
        lambda graph, names: quantizers[graph](onnx.load(exported[graph]), names),
        _labelled_recordings(recipe),
        max_error_increase=recipe.max_error_increase,
        threads=threads,
    )


def _finish(
    checkpoint: Checkpoint,
    recipe: Recipe,
    graph: str,
    path: Path,
    quantize: Quantizer,
    names: frozenset[str],
) -> GraphSummary:
    """Turn the exported graph at `path` into what the recipe asks for, beside it."""
    started = time.monotonic()
    model = onnx.load(path)
    total = len(products_of(model))
    if recipe.is_half:
        sample = encoder_sample(checkpoint.dims) if graph == "encoder" else decoder_sample(checkpoint.dims)
        model = to_half(path, sample)
    if names:
        model = quantize(model, names)
    onnx.save_model(model, path)
    graph_sha256 = sha256_of([path])
    if recipe.backend == "tensorrt":
        path = _plan(checkpoint, recipe.tensorrt or TensorRTSettings(), graph, path)
    seconds = round(time.monotonic() - started, 1)
    return GraphSummary(graph, recipe.precision, len(names), total, path.stat().st_size, seconds, graph_sha256)


def _plan(checkpoint: Checkpoint, settings: TensorRTSettings, graph: str, path: Path) -> Path:
    """Compile the graph and put the plan in its place."""
    plan = build_plan(
        path,
        _profiles(checkpoint, graph, settings),
        export.dimension_ranges(checkpoint.dims),
        PlanOptions(settings.target, settings.optimization_level, settings.workspace_bytes),
    )
    written = path.with_suffix(SUFFIXES["tensorrt"])
    written.write_bytes(plan)
    path.unlink()
    return written


def _profiles(checkpoint: Checkpoint, graph: str, settings: TensorRTSettings) -> list[Profile]:
    profiles = encoder_profiles if graph == "encoder" else decoder_profiles
    return profiles(checkpoint.dims, settings.max_batch, settings.frames)
