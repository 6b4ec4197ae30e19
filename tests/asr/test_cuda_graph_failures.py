"""What cannot be captured in a CUDA graph runs eagerly, and says so; a replay fails as a session does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from asr.errors import AsrError, OutOfMemoryError, RecognitionError
from asr.model import build_modules, decoder_input_names, decoder_output_names
from asr.sessions.cuda_graphs import GraphedSession, Step
from asr.sessions.pytorch import TorchSession
from tests.asr.graphed_steps import CPU, STEP_DIMS, Graphed, assert_same_step, step_inputs
from tests.asr.recorded_graphs import Recorder
from tests.asr.reference import random_weights


@contextmanager
def warned(caplog: pytest.LogCaptureFixture, reason: str) -> Iterator[None]:
    """Exactly one warning, which says that this is why there is no CUDA graph."""
    caplog.clear()
    yield
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "without a CUDA graph" in record.getMessage()
    assert reason in record.getMessage()


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("operation not permitted when stream is capturing"),
        torch.OutOfMemoryError("out of memory"),
        OutOfMemoryError("no room for a context"),
        RecognitionError("TensorRT does not execute"),
    ],
)
def test_a_capture_that_fails(eager: TorchSession, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    tried = []

    def capture(step: Step) -> Step:
        tried.append(step)
        raise error

    session = GraphedSession(eager, STEP_DIMS, capture)
    inputs, others = step_inputs(3), step_inputs(2)
    with warned(caplog, str(error)):
        assert_same_step(session.run(inputs), eager.run(inputs))
        assert_same_step(session.run(inputs), eager.run(inputs))
    assert len(tried) == 1
    with warned(caplog, "batch=2"):
        assert_same_step(session.run(others), eager.run(others))
    assert len(tried) == 2


class Contextless(TorchSession):
    """Of a plan that is for fewer rows than a bucket has."""

    def create_context(self, inputs: Mapping[str, Tensor]) -> None:
        if len(inputs["tokens"]) > 3:
            raise RecognitionError("no profile has these shapes")


def test_a_bucket_that_the_session_has_no_room_for(caplog: pytest.LogCaptureFixture) -> None:
    decoder = build_modules(STEP_DIMS, random_weights(STEP_DIMS))[1]
    session = Contextless(decoder, decoder_input_names(STEP_DIMS), decoder_output_names(), CPU)
    graphed = Graphed.of(session)
    for rows, replays in ((3, 0), (2, 2)):
        inputs = step_inputs(rows)
        assert_same_step(graphed.session.run(inputs), session.run(inputs))
        assert graphed.recorder.replays == replays
    assert "no profile has these shapes" in caplog.text


@pytest.mark.parametrize("output", decoder_output_names())
def test_a_replay_that_differs(eager: TorchSession, output: str, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()

    def capture(step: Step) -> Step:
        replay = recorder(step)

        def wrong() -> dict[str, Tensor]:
            outputs = replay()
            outputs[output][0].mul_(1.01)
            return outputs

        return wrong

    session = GraphedSession(eager, STEP_DIMS, capture)
    inputs = step_inputs(2)
    with warned(caplog, "differs"):
        for _ in range(3):
            assert_same_step(session.run(inputs), eager.run(inputs))
    assert recorder.replays == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemoryError),
        (RuntimeError("CUDA error: an illegal memory access"), RecognitionError),
    ],
)
def test_a_replay_that_fails(eager: TorchSession, error: Exception, kind: type[AsrError]) -> None:
    """As a session fails: the engine knows no other errors, and splits a batch only after this one."""
    recorder = Recorder()

    def capture(step: Step) -> Step:
        replay = recorder(step)

        def failing() -> dict[str, Tensor]:
            if recorder.replays == 2:
                raise error
            return replay()

        return failing

    session = GraphedSession(eager, STEP_DIMS, capture)
    inputs = step_inputs(2)
    session.run(inputs)
    with pytest.raises(AsrError, match=str(error)) as raised:
        session.run(inputs)
    assert raised.type is kind
