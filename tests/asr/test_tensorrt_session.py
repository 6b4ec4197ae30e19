"""A session's use of TensorRT, checked against the classes of the bindings: there need not be a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from asr.build.plan import decoder_profiles, encoder_profiles
from asr.checkpoint.vocabulary import published_vocabulary
from asr.engine import Engine
from asr.errors import ArtefactError, AsrError, OutOfMemoryError, RecognitionError
from asr.kv_cache import BLOCK
from asr.model import (
    Dims,
    build_modules,
    decoder_input_names,
)
from asr.session import Session
from asr.sessions.pytorch import TorchSession, torch_sessions
from asr.sessions.tensorrt import CudaStreams, TensorRTSession
from asr.tensorrt_library import TensorRTLibrary
from asr.tokenizer import Tokenizer
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance
from tests.asr.reference import random_weights
from tests.asr.tensorrt_stand_ins import (
    Checked,
    ContextStandIn,
    EngineStandIn,
    Machine,
    ProgramOrder,
    decoder_graph,
    encoder_graph,
)

CPU = torch.device("cpu")
DIMS = Dims(80, 1500, 16, 2, 2, 51_865, 448, 16, 2, 2)
MAX_BATCH = 4
FRAMES = (280, 800, 3000)

pytestmark = pytest.mark.filterwarnings("ignore:.*tiktoken:pytest.PytestUnraisableExceptionWarning")  # whisper's files


@pytest.fixture(scope="module")
def networks() -> tuple[TorchSession, TorchSession]:
    return torch_sessions(*build_modules(DIMS, random_weights(DIMS)), DIMS)


@pytest.fixture
def encoder_machine(tensorrt: TensorRTLibrary, networks: tuple[TorchSession, TorchSession]) -> Machine:
    return Machine(tensorrt, encoder_graph(DIMS, networks[0], encoder_profiles(DIMS, MAX_BATCH, FRAMES)))


@pytest.fixture
def machine(tensorrt: TensorRTLibrary, networks: tuple[TorchSession, TorchSession]) -> Machine:
    """With the decoder in it."""
    return Machine(tensorrt, decoder_graph(DIMS, networks[1], decoder_profiles(DIMS, MAX_BATCH, FRAMES)))


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "decoder.plan"
    path.write_bytes(b"what TensorRT would know how to read")
    return path


def session_of(machine: Machine, plan: Path) -> TensorRTSession:
    return TensorRTSession(plan, CPU, machine.session_library, ProgramOrder())


def noise(shape: Sequence[int]) -> Tensor:
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(0))


def decoder_inputs(
    steps: int = 1, wanted: int = 1, batch: int = 2, capacity: int = BLOCK, positions: int = 144
) -> dict[str, Tensor]:
    heads, head_dim = DIMS.n_text_head, DIMS.head_dim
    inputs = {
        "tokens": torch.arange(batch * steps).view(batch, steps),
        "past_lengths": torch.full((batch,), 5),
        "logit_positions": torch.zeros((batch, wanted), dtype=torch.int64),
        "cross_bias": noise((batch, positions)),
    }
    for name in decoder_input_names(DIMS)[len(inputs) :]:
        if name.startswith("self"):
            inputs[name] = noise((batch, heads, capacity, head_dim))
        else:
            inputs[name] = noise((batch, heads, *((head_dim, positions) if "key" in name else (positions, head_dim))))
    return inputs


def assert_equal(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=0, atol=0)


# --- what runs


def test_the_encoder_runs(encoder_machine: Machine, plan: Path) -> None:
    session = session_of(encoder_machine, plan)
    inputs = {
        "mel": noise((3, DIMS.n_mels, 320)),
        "frame_counts": torch.tensor([320, 300, 200]),
        "position_ids": torch.arange(160).repeat(3, 1),
        "attention_bias": torch.zeros(3, 160),
    }

    assert_equal(session.run(inputs), encoder_machine.graph.session.run(inputs))
    assert (session.device, session.dtype) == (CPU, torch.float32)


@pytest.mark.parametrize(
    ("inputs", "profile"),
    [
        (decoder_inputs(steps=4, wanted=2), 0),
        (decoder_inputs(steps=228, wanted=2, batch=1), 0),
        (decoder_inputs(), 1),
        (decoder_inputs(batch=4, capacity=448, positions=1500), 1),
    ],
    ids=["short prefix", "longest prefix", "step", "largest step"],
)
def test_the_decoder_runs(machine: Machine, plan: Path, inputs: dict[str, Tensor], profile: int) -> None:
    before = {name: value.clone() for name, value in inputs.items()}
    outputs = session_of(machine, plan).run(inputs)

    assert_equal(outputs, machine.graph.session.run(inputs))
    assert_equal(inputs, before)
    assert machine.profiles_run == [profile]


def test_outputs_belong_to_the_caller(machine: Machine, plan: Path) -> None:
    session = session_of(machine, plan)
    first = session.run(decoder_inputs())
    kept = {name: value.clone() for name, value in first.items()}
    second = session.run(decoder_inputs(capacity=128))

    assert_equal(first, kept)
    assert not torch.equal(first["logits"], second["logits"])


def test_the_profiles_serve_all_that_the_engine_asks(
    encoder_machine: Machine, machine: Machine, plan: Path, networks: tuple[TorchSession, TorchSession]
) -> None:
    """Languages to be found, the longest prompt, caches that grow, rows that end early: the same as PyTorch's."""
    vocabulary = published_vocabulary(DIMS.n_vocab)
    assert vocabulary is not None, "openai-whisper, which has the vocabularies, is not installed"
    tokenizer = Tokenizer(vocabulary, DIMS.n_vocab)
    mel = np.random.default_rng(0).standard_normal((DIMS.n_mels, 3000), np.float32)
    prompt = DecodingOptions(language="en", prompt=" ".join(["Rayscribe"] * 300))
    utterances = [
        Utterance(mel[:, :1]),
        Utterance(mel[:, :50], prompt),
        Utterance(mel[:, :300], DecodingOptions(language="de")),
        Utterance(mel),
    ]

    def recognized(encoder: Session, decoder: Session) -> list[Recognition]:
        results = Engine(DIMS, tokenizer, encoder, decoder).recognize(utterances)
        heard = [result for result in results if isinstance(result, Recognition)]
        assert len(heard) == len(utterances), results
        return heard

    actual = recognized(session_of(encoder_machine, plan), session_of(machine, plan))
    expected = recognized(*networks)
    assert [result.tokens for result in actual] == [result.tokens for result in expected]
    assert [result.language for result in actual] == [result.language for result in expected]
    assert [result.avg_logprob for result in actual] == pytest.approx([result.avg_logprob for result in expected])
    assert encoder_machine.profiles_run == [0]  # all in one batch, none of which was tried again
    assert machine.profiles_run[:3] == [1, 0, 1]  # language, prefix, first step


def test_all_contexts_share_one_arena(machine: Machine, plan: Path) -> None:
    session = session_of(machine, plan)
    session.create_context(decoder_inputs())

    assert len(machine.arenas) == 3
    assert len(set(machine.arenas)) == 1
    assert machine.arenas[0][1] == session.activation_bytes == 2 * machine.arena_bytes


def test_a_plan_that_needs_no_arena(machine: Machine, plan: Path) -> None:
    machine.arena_bytes = 0
    inputs = decoder_inputs()

    assert_equal(session_of(machine, plan).run(inputs), machine.graph.session.run(inputs))


# --- streams and contexts


def test_run_waits_and_enqueue_does_not(machine: Machine, plan: Path) -> None:
    streams = ProgramOrder()
    session = TensorRTSession(plan, CPU, machine.session_library, streams)
    started = streams.finished
    inputs = decoder_inputs()

    assert_equal(session.enqueue(inputs), session.run(inputs))
    assert machine.streams_run == [ProgramOrder.CURRENT, ProgramOrder.OWN]
    assert streams.finished == started + 1


def test_a_context_of_its_own(machine: Machine, plan: Path) -> None:
    session = session_of(machine, plan)
    step, prefix = decoder_inputs(), decoder_inputs(steps=3, wanted=2)
    context = session.create_context(step)

    assert_equal(session.enqueue(step, context), session.run(step))
    with pytest.raises(RecognitionError, match="refuses shape"):
        session.enqueue(prefix, context)


class RecordingStream:
    cuda_stream = 9

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def wait_stream(self, other: str) -> None:
        self._events.append(f"wait for {other}")

    def synchronize(self) -> None:
        self._events.append("finish")


def test_the_own_stream_waits_for_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is waited for even after a failure, since what was enqueued still uses its tensors."""
    events: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: RecordingStream(events))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "the current stream")
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())

    def work() -> None:
        with CudaStreams(torch.device("cuda")).own() as stream:
            events.append(f"work on {stream}")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert events == ["wait for the current stream", "work on 9", "finish"]


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
        (with_three_dimensions, r"input tokens is \(1, 2, 1\), profile 0 has \(1, 1\) to \(4, 228\)"),
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
        (decoder_inputs(steps=229, wanted=2), r"input tokens is \(2, 229\), profile 0 has \(1, 1\) to \(4, 228\)"),
        (
            decoder_inputs(steps=2),
            r"input logit_positions is \(2, 1\), profile 0.* input tokens is \(2, 2\), profile 1",
        ),
        (decoder_inputs(capacity=512), r"input self_key_0 is \(2, 2, 512, 8\), profile 1"),
        (decoder_inputs(positions=139), r"input cross_bias is \(2, 139\), profile 1 has \(1, 140\) to \(4, 1500\)"),
    ],
    ids=["rows", "steps", "logits of a step", "capacity", "positions"],
)
def test_shapes_outside_every_profile(machine: Machine, plan: Path, inputs: dict[str, Tensor], reason: str) -> None:
    session = session_of(machine, plan)
    with pytest.raises(RecognitionError, match=reason):
        session.run(inputs)
    assert machine.profiles_run == []


# --- the stand-ins are strict


def test_stand_ins_have_only_what_the_bindings_have(machine: Machine) -> None:
    trt = machine.library.module
    context = Checked(trt.IExecutionContext, ContextStandIn(machine, EngineStandIn(machine)), machine)
    with pytest.raises(AttributeError, match="set_device_memory_v2"):
        context.set_device_memory_v2(0, 0)
    for arguments in [("tokens", torch.zeros(1)), ("tokens",), ("tokens", 1, 2), (1, 1), ("tokens", True)]:
        with pytest.raises(AssertionError, match="set_tensor_address"):
            context.set_tensor_address(*arguments)
    machine.answers["execute_async_v3"] = 0
    with pytest.raises(AssertionError, match="never returns 0"):
        context.execute_async_v3(7)
