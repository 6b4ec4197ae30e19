"""The scheduler over a model of a GPU's times: every request is answered, in a time that can be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asr.devices import GPUS
from asr.roofline import MODELS, PRECISIONS, floor
from asr.scheduler import BatchLimits
from asr.utterance import Utterance
from asr.window import window_for
from benchmarks.simulation import HEADER, Clock, Load, Machine, Outcome, SimulatedModel, simulate, table_row

T4 = Machine(MODELS["base"], GPUS["t4"], PRECISIONS["fp16"], efficiency=0.5, launch_s=0.0)
LIMITS = BatchLimits(rows=32, frames=24_000)
LIGHT = Load(rate=20.0, seconds=5.0, long_share=0.1)


def outcome_of(machine: Machine, limits: BatchLimits, load: Load) -> Outcome:
    outcome = simulate(machine, limits, load)
    assert outcome is not None
    return outcome


def test_times_are_those_of_the_roofline() -> None:
    bound = floor(T4.dims, T4.device, T4.formats, batch=8, positions=400, tokens=1)

    assert T4.encode_s(8, 400) == pytest.approx(2 * bound.encoder.seconds)
    assert T4.step_s(8, 400, 4) == pytest.approx(2 * bound.step.seconds)
    assert replace(T4, launch_s=0.25).encode_s(8, 400) == pytest.approx(2 * bound.encoder.seconds + 0.25)


def test_every_request_is_answered_and_none_sooner_than_alone() -> None:
    arrivals = list(LIGHT.arrivals())
    outcome = outcome_of(T4, LIMITS, LIGHT)

    assert len(outcome.latencies) == len(arrivals) == sum(outcome.encoded)
    for latency, (_, audio_s) in zip(outcome.latencies, arrivals, strict=True):
        positions = window_for(round(100 * audio_s)).positions
        assert latency > T4.encode_s(1, positions) + T4.step_s(1, positions, 4)


def test_the_same_arrivals_every_time_at_the_rate_that_was_asked_for() -> None:
    load = Load(rate=50.0, seconds=100.0, long_share=0.25)
    arrivals = list(load.arrivals())

    assert arrivals == list(load.arrivals())
    assert len(arrivals) == pytest.approx(5000, rel=0.05)
    assert sum(audio_s == 30.0 for _, audio_s in arrivals) == pytest.approx(1250, rel=0.1)
    assert all(1.0 <= audio_s <= 30.0 for _, audio_s in arrivals)


def test_limits_hold() -> None:
    load = Load(rate=400.0, seconds=1.0, long_share=0.0)
    outcome = outcome_of(T4, BatchLimits(rows=8, frames=2_000), load)

    assert max(outcome.rows) == 8
    assert 1 < max(outcome.encoded) <= 7  # the shortest window has 280 frames


def test_one_row_at_a_time_falls_behind() -> None:
    assert simulate(T4, BatchLimits(rows=1), Load(rate=1000.0, seconds=5.0)) is None
    assert "falls behind" in table_row(BatchLimits(rows=1), None)


def test_holding_back_makes_larger_batches() -> None:
    load = Load(rate=100.0, seconds=5.0)
    eager, patient = (outcome_of(T4, replace(LIMITS, wait_s=wait_s), load) for wait_s in (0.0, 0.1))

    assert len(patient.encoded) < len(eager.encoded)
    assert sum(patient.encoded) == sum(eager.encoded)


def test_a_table_has_a_cell_for_each_column() -> None:
    columns = HEADER.splitlines()[0].count("|")

    assert table_row(LIMITS, outcome_of(T4, LIMITS, replace(LIGHT, rate=50.0))).count("|") == columns
    assert table_row(LIMITS, None).count("|") == columns


def test_a_dropped_row_is_gone() -> None:
    model = SimulatedModel(T4, Clock())
    utterances = [Utterance(np.zeros((1, 300), np.float32))]
    [row] = model.start(utterances, model.encode(utterances))
    model.drop(row)

    assert model.rows_in_flight == 0
    assert model.step() == []
