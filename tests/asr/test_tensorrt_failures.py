"""What fails in a session's use of TensorRT, at its start and in its runs, is told as errors that say why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from asr.errors import ArtefactError, AsrError, OutOfMemoryError, RecognitionError
from asr.sessions.tensorrt import TensorRTSession
from asr.tensorrt_library import TensorRTLibrary
from tests.asr.tensorrt_sessions import CPU, assert_equal, decoder_inputs, session_of
from tests.asr.tensorrt_stand_ins import Machine, ProgramOrder

# --- what fails at the start


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("Runtime", None),
        ("deserialize_cuda_engine", None),
        ("create_execution_context", None),
        ("set_optimization_profile_async", False),
    ],
)
@pytest.mark.parametrize(
    ("says", "kind"),
    [("The plan is of version 239.", ArtefactError), ("Error Code 2: OutOfMemory", OutOfMemoryError)],
)
def test_a_start_that_is_refused(
    machine: Machine, plan: Path, method: str, answer: object, says: str, kind: type[AsrError]
) -> None:
    machine.answers[method] = answer
    machine.says = says
    with pytest.raises(kind) as caught:
        session_of(machine, plan)

    assert str(plan) in str(caught.value)
    assert f"ERROR: {says}" in str(caught.value)


def test_a_plan_that_is_missing(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="cannot be read") as caught:
        session_of(machine, tmp_path / "no such.plan")

    assert "no such.plan" in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(tensorrt: TensorRTLibrary, plan: Path) -> None:
    with pytest.raises(ArtefactError, match=r"decoder\.plan: there is no CUDA device"):
        TensorRTSession(plan, torch.device("cuda"))


def test_what_is_no_plan_is_refused_by_the_real_runtime(tensorrt: TensorRTLibrary, plan: Path) -> None:
    with pytest.raises(ArtefactError, match="is not a plan") as caught:
        TensorRTSession(plan, CPU, tensorrt, ProgramOrder())

    assert "\n  ERROR: " in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "reason"), [(torch.float16, "not one floating-point type but 2"), (torch.float8_e5m2, "FP8")]
)
def test_types_that_no_caller_could_know(machine: Machine, plan: Path, dtype: torch.dtype, reason: str) -> None:
    bias = {"cross_bias": (dtype, machine.graph.inputs["cross_bias"][1])}
    machine.graph = replace(machine.graph, inputs={**machine.graph.inputs, **bias})
    with pytest.raises(ArtefactError, match=reason):
        session_of(machine, plan)


def test_a_tensor_that_lies_on_the_host(machine: Machine, plan: Path) -> None:
    machine.answers["get_tensor_location"] = machine.library.module.TensorLocation.HOST
    with pytest.raises(ArtefactError, match="tensor tokens is for the host"):
        session_of(machine, plan)


# --- what fails in a run


@pytest.mark.parametrize("method", ["set_input_shape", "set_tensor_address", "execute_async_v3"])
@pytest.mark.parametrize(
    ("says", "kind"),
    [("Error Code 7: Internal Error", RecognitionError), ("cudaError 2: out of memory", OutOfMemoryError)],
)
def test_a_run_that_is_refused(machine: Machine, plan: Path, method: str, says: str, kind: type[AsrError]) -> None:
    session = session_of(machine, plan)
    machine.answers[method] = False
    machine.says = says
    with pytest.raises(RecognitionError) as caught:
        session.run(decoder_inputs())

    assert type(caught.value) is kind
    assert str(plan) in str(caught.value)
    assert f"ERROR: {says}" in str(caught.value)
    machine.answers.clear()
    assert_equal(session.run(decoder_inputs()), machine.graph.session.run(decoder_inputs()))


def test_an_output_of_unknown_shape(machine: Machine, plan: Path) -> None:
    session = session_of(machine, plan)
    machine.answers["get_tensor_shape"] = machine.library.module.Dims((2, -1))
    with pytest.raises(RecognitionError, match=r"no shape of output logits, only \(2, -1\)"):
        session.run(decoder_inputs())


class FullDevice:
    """A graph for whose outputs PyTorch finds no room."""

    device = CPU
    dtype = torch.float32

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        raise torch.OutOfMemoryError("no room")


def test_memory_that_pytorch_does_not_find(machine: Machine, plan: Path) -> None:
    machine.graph = replace(machine.graph, session=FullDevice())
    with pytest.raises(OutOfMemoryError, match="no room"):
        session_of(machine, plan).run(decoder_inputs())


def without_tokens(inputs: dict[str, Tensor]) -> None:
    del inputs["tokens"]


def with_another(inputs: dict[str, Tensor]) -> None:
    inputs["temperature"] = torch.zeros(1)


def with_narrow_tokens(inputs: dict[str, Tensor]) -> None:
    inputs["tokens"] = inputs["tokens"].int()


def with_scattered_bias(inputs: dict[str, Tensor]) -> None:
    inputs["cross_bias"] = inputs["cross_bias"].T.contiguous().T


def with_bias_elsewhere(inputs: dict[str, Tensor]) -> None:
    inputs["cross_bias"] = inputs["cross_bias"].to("meta")


def with_three_dimensions(inputs: dict[str, Tensor]) -> None:
    inputs["tokens"] = inputs["tokens"][None]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (without_tokens, r"instead of \['cross_bias'"),
        (with_another, "'temperature'"),
        (with_narrow_tokens, "input tokens is torch.int32 on cpu, not torch.int64 on cpu"),
        (with_scattered_bias, "input cross_bias is not contiguous"),
        (with_bias_elsewhere, "input cross_bias is torch.float32 on meta"),
        (with_three_dimensions, r"input tokens is \(1, 2, 1\), profile 0 has \(1, 2\) to \(4, 224\)"),
    ],
)
def test_inputs_of_another_graph(
    machine: Machine, plan: Path, spoil: Callable[[dict[str, Tensor]], None], reason: str
) -> None:
    session = session_of(machine, plan)
    inputs = decoder_inputs()
    spoil(inputs)
    for use in (session.run, session.enqueue, session.create_context):
        with pytest.raises(RecognitionError, match=reason):
            use(inputs)


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (decoder_inputs(batch=5), r"input tokens is \(5, 1\).*profile 1 has \(1, 1\) to \(4, 1\)"),
        (decoder_inputs(steps=225), r"input tokens is \(2, 225\), profile 0 has \(1, 2\) to \(4, 224\)"),
        (
            decoder_inputs(steps=2, wanted=2),
            r"input logit_positions is \(2, 2\), profile 0.* input tokens is \(2, 2\), profile 1",
        ),
        (decoder_inputs(capacity=512), r"input self_key_0 is \(2, 2, 512, 8\), profile 1"),
        (decoder_inputs(positions=139), r"input cross_bias is \(2, 139\), profile 1 has \(1, 140\) to \(4, 1500\)"),
    ],
    ids=["rows", "steps", "logits", "capacity", "positions"],
)
def test_shapes_outside_every_profile(machine: Machine, plan: Path, inputs: dict[str, Tensor], reason: str) -> None:
    session = session_of(machine, plan)
    with pytest.raises(RecognitionError, match=reason):
        session.run(inputs)
    assert machine.profiles_run == []
