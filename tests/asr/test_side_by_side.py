"""A run of a graph beside another: by which session, what it makes, and when it has all threads again."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from asr.build.artefacts import ensure_artefacts
from asr.build.recipe import GraphBackend, Precision, Recipe
from asr.engine import encoder_inputs
from asr.errors import RecognitionError
from asr.loading import cpu_session
from asr.sessions.side_by_side import RUNS, SideBySide
from asr.utterance import Utterance
from tests.asr.excerpts import ENGLISH, Recording
from tests.asr.fake_model import PATIENCE_S
from tests.asr.network_runs import THREADS
from tests.asr.openvino_sessions import in_dtype
from tests.asr.reference import LoadedModel


class NamedSession:
    """Makes its name, once it may; fails where it is told to."""

    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, name: int) -> None:
        self.name = name
        self.is_running = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.is_running.set()
        assert self.may_go_on.wait(PATIENCE_S)
        if "fail" in inputs:
            raise RecognitionError("as told")
        return {"name": torch.tensor(self.name)}


ALONE, BESIDE = 1, 2


@pytest.fixture
def alone() -> NamedSession:
    return NamedSession(ALONE)


@pytest.fixture
def session(alone: NamedSession) -> SideBySide:
    return SideBySide(alone, NamedSession(BESIDE))


@pytest.fixture
def other(alone: NamedSession, session: SideBySide) -> Iterator[Future[dict[str, Tensor]]]:
    """A run that goes on until `alone` may."""
    alone.may_go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(session.run, {})
        alone.may_go_on.set()


def runner(session: SideBySide) -> int:
    return int(session.run({})["name"])


def test_a_run_by_itself_has_all_threads(session: SideBySide) -> None:
    assert [runner(session), runner(session)] == [ALONE, ALONE]


def test_a_run_beside_another_has_its_share(
    alone: NamedSession, session: SideBySide, other: Future[dict[str, Tensor]]
) -> None:
    assert alone.is_running.wait(PATIENCE_S)
    assert [runner(session), runner(session)] == [BESIDE, BESIDE]

    alone.may_go_on.set()
    assert int(other.result(PATIENCE_S)["name"]) == ALONE
    assert runner(session) == ALONE


def test_a_run_that_fails_leaves_the_threads_to_the_next(session: SideBySide) -> None:
    with pytest.raises(RecognitionError, match="as told"):
        session.run({"fail": torch.zeros(1)})

    assert runner(session) == ALONE


@pytest.mark.parametrize(("backend", "precision"), [("onnx", "int8"), ("openvino", "int8"), ("openvino", "bf16")])
def test_what_a_run_makes_does_not_depend_on_how_many_there_are(
    tiny_en: LoadedModel, artefact_cache: Path, recording: Recording, backend: GraphBackend, precision: Precision
) -> None:
    recipe = Recipe(precision, backend)
    graph = ensure_artefacts(tiny_en.checkpoint, recipe, artefact_cache).encoder
    alone, beside = cpu_session(graph, recipe, THREADS), cpu_session(graph, recipe, THREADS, runs=RUNS)
    cuts = [recording.cut(start_s, end_s) for start_s, end_s in ((0.5, 4.7), (6.4, 7.3), (13, 28))]
    inputs = [in_dtype(encoder_inputs([Utterance(cut, ENGLISH)]), alone.dtype) for cut in cuts]
    with ThreadPoolExecutor(RUNS) as pool:
        together = list(pool.map(beside.run, inputs))

    for one, made in zip(inputs, together, strict=True):
        for name, value in alone.run(one).items():
            assert torch.equal(made[name], value), name
