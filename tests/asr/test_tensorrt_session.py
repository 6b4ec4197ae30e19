"""A session's use of TensorRT, checked against the classes of the bindings: there need not be a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from asr.build.plan import encoder_profiles
from asr.checkpoint.vocabulary import published_vocabulary
from asr.engine import Engine
from asr.errors import RecognitionError
from asr.session import Session
from asr.sessions.pytorch import TorchSession
from asr.sessions.tensorrt import CudaStreams, TensorRTSession
from asr.tensorrt_library import TensorRTLibrary
from asr.tokenizer import Tokenizer
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance
from tests.asr.tensorrt_sessions import (
    CPU,
    DIMS,
    FRAMES,
    MAX_BATCH,
    assert_equal,
    decoder_inputs,
    noise,
    session_of,
)
from tests.asr.tensorrt_stand_ins import Machine, ProgramOrder, encoder_graph

pytestmark = pytest.mark.filterwarnings("ignore:.*tiktoken:pytest.PytestUnraisableExceptionWarning")  # whisper's files


@pytest.fixture
def encoder_machine(tensorrt: TensorRTLibrary, networks: tuple[TorchSession, TorchSession]) -> Machine:
    return Machine(tensorrt, encoder_graph(DIMS, networks[0], encoder_profiles(DIMS, MAX_BATCH, FRAMES)))


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
        (decoder_inputs(steps=2), 0),
        (decoder_inputs(steps=224, batch=1), 0),
        (decoder_inputs(), 1),
        (decoder_inputs(batch=4, capacity=448, positions=1500), 1),
    ],
    ids=["short prompt", "longest prompt", "step", "largest step"],
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
    assert machine.profiles_run[:2] == [0, 1]  # the prompt, the first step


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
    step, prompt = decoder_inputs(), decoder_inputs(steps=3)
    context = session.create_context(step)

    assert_equal(session.enqueue(step, context), session.run(step))
    with pytest.raises(RecognitionError, match="refuses shape"):
        session.enqueue(prompt, context)


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
