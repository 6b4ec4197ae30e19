"""Plans are really built, by TensorRT for RTX, which needs no GPU; what cannot be built is refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import pytest
import torch
from onnx import NodeProto, TensorProto, helper

from asr.build.export import dimension_ranges, export_decoder, export_encoder
from asr.build.plan import PlanOptions, Profile, SizeRange, build_plan, decoder_profiles, encoder_profiles
from asr.errors import EngineBuildError
from asr.model import Dims, build_modules
from asr.tensorrt_library import TensorRTLibrary
from tests.asr.reference import random_weights

DIMS = Dims(80, 1500, 16, 2, 1, 200, 448, 16, 2, 1)
FRAMES = (280, 800, 3000)
LIMITS = dimension_ranges(DIMS)
AMPERE, TURING = PlanOptions("sm86"), PlanOptions("sm75")
BATCH: Profile = {"batch": SizeRange(1, 2, 4)}
BATCH_LIMITS = {"batch": (1, 256)}
FLOAT, HALF, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64


@pytest.fixture(scope="module")
def graphs(compiler: TensorRTLibrary, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with both graphs of a small model that was never trained, in fp32."""
    directory = tmp_path_factory.mktemp("graphs")
    encoder, decoder = build_modules(DIMS, random_weights(DIMS))
    export_encoder(encoder, DIMS, directory / "encoder.onnx")
    export_decoder(decoder, DIMS, directory / "decoder.onnx")
    return directory


OnnxShape: TypeAlias = Sequence[int | str | None]
Inputs: TypeAlias = Mapping[str, tuple[int, OnnxShape]]
"""Name → type of the elements and shape."""


def write_graph(
    path: Path, node: NodeProto, inputs: Inputs, weights: Sequence[TensorProto] = (), opset: int = 20
) -> Path:
    """A graph of one operator, with an output of the first input's type."""
    [kind, *_] = [elements for elements, _ in inputs.values()]
    graph = helper.make_graph(
        [node],
        "one operator",
        [helper.make_tensor_value_info(name, elements, shape) for name, (elements, shape) in inputs.items()],
        [helper.make_tensor_value_info(node.output[0], kind, None)],
        list(weights),
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save_model(helper.make_model(graph, opset_imports=opsets, ir_version=11 if opset > 20 else 10), path)
    return path


def product(path: Path, elements: int) -> Path:
    """x (batch, 64) times a constant matrix, in this type."""
    weight = helper.make_tensor("weight", elements, (64, 64), [0.5] * 64 * 64)
    return write_graph(
        path, helper.make_node("MatMul", ["x", "weight"], ["y"]), {"x": (elements, ["batch", 64])}, [weight]
    )


@pytest.fixture
def half(compiler: TensorRTLibrary, tmp_path: Path) -> Path:
    """The smallest graph that every GPU can run."""
    return product(tmp_path / "half.onnx", HALF)


def refusal(graph: Path, options: PlanOptions = AMPERE, profiles: Sequence[Profile] = (BATCH,), **more: Any) -> str:
    """What the error says."""
    with pytest.raises(EngineBuildError) as caught:
        build_plan(graph, profiles, BATCH_LIMITS, options, **more)
    assert str(caught.value).startswith(f"{graph}: ")
    return str(caught.value)


# --- what is built


def test_the_encoder_builds(graphs: Path) -> None:
    plan = build_plan(graphs / "encoder.onnx", encoder_profiles(DIMS, 8, FRAMES), LIMITS, AMPERE)

    assert len(plan) > 100_000


def test_the_decoder_builds(graphs: Path) -> None:
    plan = build_plan(graphs / "decoder.onnx", decoder_profiles(DIMS, 8, FRAMES), LIMITS, AMPERE)

    assert len(plan) > 100_000


def test_half_precision_builds_for_a_t4(half: Path) -> None:
    assert len(build_plan(half, [BATCH], BATCH_LIMITS, TURING)) > 10_000


def test_a_library_without_targets_builds_for_its_own_gpu(half: Path, compiler: TensorRTLibrary) -> None:
    """Full TensorRT has no targets; this is TensorRT for RTX with that part hidden."""
    plain = replace(compiler, name="TensorRT", module=WithoutTargets(compiler.module))

    assert len(build_plan(half, [BATCH], BATCH_LIMITS, PlanOptions(), plain)) > 10_000
    assert "builds for the GPU of its machine only, not for sm75" in refusal(half, TURING, library=plain)


class WithoutTargets:
    """The bindings, but for the choice of a compute capability."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def Builder(self, logger: Any) -> Any:  # noqa: N802  # TensorRT's name
        return PlainBuilder(self._module.Builder(logger))


class PlainBuilder:
    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def create_builder_config(self) -> Any:
        self._config = self._builder.create_builder_config()
        return PlainConfig(self._config)

    def build_serialized_network(self, network: Any, config: Any) -> Any:
        return self._builder.build_serialized_network(network, self._config)


class PlainConfig:
    def __init__(self, config: Any) -> None:
        self.__dict__["_config"] = config

    def __getattr__(self, name: str) -> Any:
        if "compute_capabilit" in name:
            raise AttributeError(name)
        return getattr(self._config, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._config, name, value)


# --- profiles


def test_profiles_of_whisper() -> None:
    rows = {"batch": SizeRange(1, 8, 8), "positions": SizeRange(140, 400, 1500)}

    assert encoder_profiles(DIMS, 8, FRAMES) == [rows]
    assert decoder_profiles(DIMS, 8, FRAMES) == [
        {**rows, "steps": SizeRange(2, 32, 224), "wanted": SizeRange(1, 1, 1), "capacity": SizeRange(64, 64, 64)},
        {**rows, "steps": SizeRange(1, 1, 1), "wanted": SizeRange(1, 1, 1), "capacity": SizeRange(64, 128, 448)},
    ]


@pytest.mark.parametrize("frames", [(281, 800, 3000), (280, 800, 3002)])
def test_frames_that_the_model_lacks(frames: tuple[int, int, int]) -> None:
    for profiles_of in (encoder_profiles, decoder_profiles):
        with pytest.raises(ValueError, match="must be multiples of 2, and at most 3000"):
            profiles_of(DIMS, 8, frames)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (SizeRange(0, 2, 4), "0..2..4, but the graph takes 1 to 256"),
        (SizeRange(1, 2, 257), "1..2..257, but the graph takes 1 to 256"),
        (SizeRange(3, 2, 4), "3..2..4"),
        (SizeRange(1, 5, 4), "1..5..4"),
    ],
)
def test_profiles_that_make_no_sense(half: Path, sizes: SizeRange, said: str) -> None:
    assert f"asks for batch {said}" in refusal(half, profiles=[BATCH, {"batch": sizes}])


def test_a_profile_of_another_graph(half: Path) -> None:
    assert "asks for rows 1..2..4, but the graph has no such dimension" in refusal(
        half, profiles=[{"rows": BATCH["batch"]}]
    )
    assert "no profile says how large dimension 0 ('batch') of input x is" in refusal(half, profiles=[{}])


def test_no_profile(half: Path) -> None:
    assert "no optimization profile" in refusal(half, profiles=[])


def test_a_dimension_without_a_name(compiler: TensorRTLibrary, tmp_path: Path) -> None:
    graph = write_graph(tmp_path / "nameless.onnx", helper.make_node("Relu", ["x"], ["y"]), {"x": (HALF, [None, 4])})

    assert "how large dimension 0 ('') of input x is" in refusal(graph)


# --- options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (PlanOptions("sm90"), "knows no target 'sm90', only native, sm75"),
        (PlanOptions("t4"), "knows no target 't4'"),
        (PlanOptions("none"), "knows no target 'none'"),
        (replace(AMPERE, optimization_level=6), "has no optimization level 6"),
        (replace(AMPERE, optimization_level=-1), "has no optimization level -1"),
        (replace(AMPERE, workspace_bytes=-1), "a workspace of -1 bytes is not possible"),
    ],
)
def test_options_that_do_not_exist(half: Path, options: PlanOptions, said: str) -> None:
    assert said in refusal(half, options)


@pytest.mark.parametrize("level", [0, 3])
def test_other_levels(half: Path, level: int) -> None:
    assert len(build_plan(half, [BATCH], BATCH_LIMITS, replace(AMPERE, optimization_level=level))) > 10_000


def test_a_workspace_that_is_too_small(graphs: Path) -> None:
    profiles = encoder_profiles(DIMS, 8, FRAMES)
    with pytest.raises(EngineBuildError, match=r"encoder\.onnx: .* makes no plan of it\n  [\s\S]*workspace"):
        build_plan(graphs / "encoder.onnx", profiles, LIMITS, replace(AMPERE, workspace_bytes=1024))


def test_a_workspace_that_is_large_enough(half: Path) -> None:
    assert len(build_plan(half, [BATCH], BATCH_LIMITS, replace(AMPERE, workspace_bytes=2**30))) > 10_000


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_native_without_a_gpu(half: Path) -> None:
    assert "CUDA driver" in refusal(half, PlanOptions())


# --- graphs


def test_single_precision_does_not_build_for_a_t4(tmp_path: Path, compiler: TensorRTLibrary) -> None:
    said = refusal(product(tmp_path / "single.onnx", FLOAT), TURING)

    assert "makes no plan of it\n  ERROR: " in said
    assert "FP32 GEMM is not supported" in said


def test_an_operator_that_is_not_known(compiler: TensorRTLibrary, tmp_path: Path) -> None:
    operator = helper.make_node("MatMulIntegerToFloat", ["x", "x"], ["y"], name="first product", domain="com.microsoft")
    said = refusal(write_graph(tmp_path / "unknown.onnx", operator, {"x": (TensorProto.UINT8, ["batch", 4])}))

    assert "cannot read it (MatMulIntegerToFloat" in said
    assert "Node name: first product" in said


def test_an_input_that_would_be_ignored(compiler: TensorRTLibrary, tmp_path: Path) -> None:
    """ONNX Runtime masks by these lengths, TensorRT does not: the same graph would give other results on the GPU."""
    shape: OnnxShape = ["batch", 2, 8, 16]
    attention = helper.make_node("Attention", ["query", "key", "value", "", "", "", "lengths"], ["y"])
    inputs: Inputs = {
        "query": (HALF, shape),
        "key": (HALF, shape),
        "value": (HALF, shape),
        "lengths": (INT64, ["batch"]),
    }
    said = refusal(write_graph(tmp_path / "attention.onnx", attention, inputs, opset=24))

    assert "the plan would ignore an input of the graph" in said
    assert "Unused Input: lengths" in said


@pytest.mark.parametrize("content", [b"", b"certainly not ONNX", b"\x08\x0a\x3a\xff\xff\xff\x7f"])
def test_what_is_no_graph(compiler: TensorRTLibrary, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "no graph.onnx"
    path.write_bytes(content)
    said = refusal(path)

    assert "is not an ONNX graph" in said or "cannot read it" in said


def test_half_a_graph(half: Path) -> None:
    half.write_bytes(half.read_bytes()[:-10])

    assert "Failed to parse the ONNX model" in refusal(half)


def test_no_file(compiler: TensorRTLibrary, tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "no such.onnx")
    assert "cannot be read" in refusal(tmp_path)


def test_a_builder_that_cannot_be(half: Path, compiler: TensorRTLibrary) -> None:
    """Full TensorRT makes no builder where there is no driver, and pybind11 says so with a TypeError."""
    broken = replace(compiler, module=WithoutBuilder())

    assert "cannot build here, for want of a GPU or its driver" in refusal(half, library=broken)


class WithoutBuilder:
    def Builder(self, logger: Any) -> Any:  # noqa: N802  # TensorRT's name
        raise TypeError("pybind11::init(): factory function returned nullptr")
