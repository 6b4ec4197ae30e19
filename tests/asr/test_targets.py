"""The promise: every graph compiles for a T4 in every precision, which needs TensorRT for RTX, but no GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

from asr.build import builder
from asr.build.__main__ import main
from asr.build.calibration import Activation, full_windows, observe, read_recordings
from asr.build.export import dimension_ranges, export_decoder, export_encoder
from asr.build.half import to_half
from asr.build.plan import PlanOptions, build_plan, decoder_profiles, encoder_profiles
from asr.build.products import HEAD, products_of
from asr.build.recipe import Recipe
from asr.build.samples import decoder_sample, encoder_sample
from asr.build.smoothing import smooth
from asr.model import Dims
from asr.tensorrt_library import TensorRTLibrary
from tests.asr.calibration_set import write_calibration_set
from tests.asr.reference import LoadedModel

FRAMES = (280, 800, 3000)
MAX_BATCH = 8
T4, A10G = "sm75", "sm86"


@pytest.fixture(scope="module")
def calibration_set(speech: NDArray[Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_calibration_set(tmp_path_factory.mktemp("calibration"), speech)


# --- every graph in every precision


@dataclass(frozen=True)
class Graphs:
    """One model's graphs, observed, smoothed and exported once for all precisions."""

    dims: Dims
    activations: Mapping[str, Activation]
    single: dict[str, Path]
    half: dict[str, ModelProto]


@pytest.fixture(scope="module", params=["tiny_en", "base"])
def graphs(
    request: pytest.FixtureRequest,
    compiler: TensorRTLibrary,
    calibration_set: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Graphs:
    model: LoadedModel = request.getfixturevalue(request.param)
    dims, folder = model.dims, tmp_path_factory.mktemp(request.param)
    encoder, decoder = model.checkpoint.modules()
    windows = full_windows(read_recordings(calibration_set), model.checkpoint)
    smooth(encoder, decoder, observe(encoder, decoder, model.checkpoint, windows))
    activations = observe(encoder, decoder, model.checkpoint, windows)
    single = {graph: folder / f"{graph}.onnx" for graph in ("encoder", "decoder")}
    export_encoder(encoder, dims, single["encoder"])
    export_decoder(decoder, dims, single["decoder"])
    samples = {"encoder": encoder_sample(dims), "decoder": decoder_sample(dims)}
    half = {graph: to_half(path, samples[graph]) for graph, path in single.items()}
    return Graphs(dims, activations, single, half)


def compiled(graphs: Graphs, graph: str, path: Path, target: str) -> bytes:
    profiles = {"encoder": encoder_profiles, "decoder": decoder_profiles}[graph]
    return build_plan(
        path, profiles(graphs.dims, MAX_BATCH, FRAMES), dimension_ranges(graphs.dims), PlanOptions(target)
    )


@pytest.mark.parametrize("graph", ["encoder", "decoder"])
def test_single_precision_compiles_for_an_a10g(graphs: Graphs, graph: str) -> None:
    plan = compiled(graphs, graph, graphs.single[graph], A10G)

    assert len(plan) > 0.9 * graphs.single[graph].stat().st_size


@pytest.mark.parametrize("graph", ["encoder", "decoder"])
def test_lower_precisions_compile_for_a_t4(graphs: Graphs, graph: str, tmp_path: Path) -> None:
    """float16; int8 wherever a range is worth it; and mixed as a measurement may have left it, every other product."""
    recipe = Recipe("int8", "tensorrt")
    quantize = builder._quantizer(graph, recipe, graphs.activations)
    worthy = builder._placement(graph, graphs.single[graph], recipe, graphs.activations)
    products = [name for name in products_of(graphs.half[graph]) if name != HEAD]
    placements = {"fp16": frozenset[str](), "mixed": frozenset(products[::2]), "int8": worthy}
    sizes = {}
    for precision, placement in placements.items():
        path = tmp_path / f"{precision}.onnx"
        onnx.save_model(quantize(graphs.half[graph], placement), path)
        sizes[precision] = len(compiled(graphs, graph, path, T4))

    assert set(products) - worthy <= {name for name in products if name.endswith("mlp.2")}
    assert sizes["int8"] < sizes["mixed"] < sizes["fp16"] < graphs.single[graph].stat().st_size


def test_mixed_goes_the_whole_way(
    compiler: TensorRTLibrary,
    tiny_en: LoadedModel,
    calibration_set: Path,
    artefact_cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Calibrated, smoothed, measured product by product, converted and compiled, by one command."""
    arguments = ["--model", "tiny.en", "--backend", "tensorrt", "--precision", "mixed", "--target", T4]
    arguments += ["--max-batch", str(MAX_BATCH), "--calibration", str(calibration_set), "--cache", str(artefact_cache)]
    assert main([*arguments, "--json"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    graphs, choice, made_of = manifest["graphs"], manifest["choice"], manifest["made_of"]

    assert [graph["graph"] for graph in graphs] == ["encoder", "decoder"]
    assert [graph["quantized"] for graph in graphs] == [len(names) for names in manifest["placement"].values()]
    assert (made_of["target"], made_of["plan"]["max_batch"]) == (T4, MAX_BATCH)
    assert (made_of["library"], made_of["library_version"]) == (compiler.name, compiler.version)
    assert sum(graph["quantized"] for graph in graphs) > 32
    assert HEAD not in manifest["placement"]["decoder"]
    assert len(choice["order"]) == 28 + 28  # of 64 products without the head, with query and key as one in 8 layers
    assert choice["trials"][-1]["error_rate"] - choice["float_error_rate"] <= 0.4


# --- what is missing


@pytest.mark.parametrize("precision", ["int8", "mixed"])
def test_without_a_calibration_set(
    compiler: TensorRTLibrary, tmp_path: Path, precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", "tiny.en", "--backend", "tensorrt", "--precision", precision, "--cache", str(tmp_path)]
    assert main([*arguments, "--target", T4]) == 1

    printed, error = capsys.readouterr()
    assert printed == ""
    command = f"python -m asr.build --backend tensorrt --precision {precision} --calibration FOLDER"
    assert f"error: tensorrt {precision}: needs a calibration set: {command}" in error
