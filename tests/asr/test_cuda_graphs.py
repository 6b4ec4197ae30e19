"""Decoder steps by replay do what the eager step does, with recordings in the place of CUDA graphs."""

from __future__ import annotations

import weakref

import pytest
import torch

from asr.kv_cache import BLOCK
from asr.sessions.cuda_graphs import CAPACITIES, POSITIONS
from asr.sessions.pytorch import TorchSession
from tests.asr.graphed_steps import STEP_DIMS, Graphed, Inputs, assert_same_step, step_inputs
from tests.asr.recorded_graphs import Copies

# --- every bucket does what the eager step does


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 13, 31])
def test_every_bucket(eager: TorchSession, graphed: Graphed, rows: int, capacity: int) -> None:
    """One after another, each once with inputs that fill it and once with inputs that do not."""
    for positions in POSITIONS:
        for inputs in (
            step_inputs(rows, capacity, positions, seed=1),
            step_inputs(max(1, rows - 1), max(BLOCK, capacity - BLOCK), positions - 9, seed=2),
        ):
            assert_same_step(graphed.session.run(inputs), eager.run(inputs))


def test_each_bucket_is_captured_once(eager: TorchSession, graphed: Graphed) -> None:
    for rows in (3, 4, 1, 3, 4, 1):
        for positions in (40, 256, 300):
            inputs = step_inputs(rows, positions=positions)
            assert_same_step(graphed.session.run(inputs), eager.run(inputs))

    assert graphed.recorder.captures == 2 * 2
    assert graphed.recorder.replays == 18 + graphed.recorder.captures  # each is tried once when it is captured


def test_a_larger_batch_leaves_nothing_behind(eager: TorchSession, graphed: Graphed) -> None:
    """Not even what is no number, which masks cannot hide."""
    spoilt = {
        name: value.fill_(torch.nan) if value.is_floating_point() else value
        for name, value in step_inputs(8, 128, 512).items()
    }
    small = [step_inputs(3, seed=1), step_inputs(5, 128, 300, seed=2), step_inputs(1, 64, 257, seed=3)]
    for inputs in (*small, *small[::-1]):
        assert graphed.session.run(spoilt)["logits"].isnan().all()
        assert_same_step(graphed.session.run(inputs), eager.run(inputs))


def test_a_first_batch_of_no_numbers_spoils_no_bucket(
    eager: TorchSession, graphed: Graphed, caplog: pytest.LogCaptureFixture
) -> None:
    spoilt = step_inputs(4)
    spoilt["cross_value_0"].fill_(torch.nan)
    graphed.session.run(spoilt)
    replays = graphed.recorder.replays
    inputs = step_inputs(4, seed=1)

    assert_same_step(graphed.session.run(inputs), eager.run(inputs))
    assert graphed.recorder.replays == replays + 1
    assert not caplog.records


def test_outputs_are_the_callers(eager: TorchSession, graphed: Graphed) -> None:
    """They survive the next step, and changing them changes no step."""
    first, second = step_inputs(2, seed=1), step_inputs(2, seed=2)
    expected = eager.run(first)
    kept = graphed.session.run(first)
    for value in graphed.session.run(second).values():
        value.fill_(-torch.inf)

    assert_same_step(kept, expected)
    assert_same_step(graphed.session.run(second), eager.run(second))


def test_inputs_stay_as_they_were(graphed: Graphed) -> None:
    inputs = step_inputs(3)
    before = {name: value.clone() for name, value in inputs.items()}
    graphed.session.run(inputs)

    for name, value in inputs.items():
        assert torch.equal(value, before[name]), name


# --- what is copied


CROSS_TENSORS = STEP_DIMS.n_text_layer  # keys; as many values, of another shape


def copies(graphed: Graphed, inputs: Inputs) -> Copies:
    counted = Copies()
    with counted:
        graphed.session.run(inputs)
    return counted


@pytest.fixture
def captured(graphed: Graphed) -> Graphed:
    """With the bucket of `step_inputs(4)`, so that only a step's own copies are counted."""
    graphed.session.run(step_inputs(4))
    return graphed


def next_step(inputs: Inputs, seed: int) -> Inputs:
    """The step after this one: the same batch, with new tokens and a new cache."""
    fresh = step_inputs(len(inputs["tokens"]), seed=seed)
    return {**fresh, **{name: value for name, value in inputs.items() if name.startswith("cross_")}}


def test_cross_keys_and_values_are_copied_once_a_batch(captured: Graphed) -> None:
    for rows in (4, 3):
        inputs = step_inputs(rows, seed=rows)
        first = copies(captured, inputs)
        second = copies(captured, next_step(inputs, seed=9))

        for name in ("cross_key_0", "cross_value_0"):
            assert first.of(inputs[name]) == CROSS_TENSORS
            assert second.of(inputs[name]) == 0
        for counted in (first, second):
            assert counted.of(inputs["self_key_0"]) == 2 * STEP_DIMS.n_text_layer


def test_cross_keys_that_were_changed_are_copied_again(eager: TorchSession, captured: Graphed) -> None:
    inputs = step_inputs(4, seed=1)
    captured.session.run(inputs)
    inputs["cross_key_1"].mul_(-1)

    assert copies(captured, inputs).of(inputs["cross_key_1"]) == 1
    assert_same_step(captured.session.run(inputs), eager.run(inputs))


def test_cross_keys_that_were_replaced_are_copied_again(eager: TorchSession, captured: Graphed) -> None:
    inputs = step_inputs(4, seed=1)
    captured.session.run(inputs)
    inputs["cross_value_1"] = inputs["cross_value_1"].flip(2)

    assert copies(captured, inputs).of(inputs["cross_value_1"]) == 1
    assert_same_step(captured.session.run(inputs), eager.run(inputs))


def test_another_bucket_in_between(eager: TorchSession, captured: Graphed) -> None:
    """The buckets share their buffers, so what was copied for one of them is gone after another."""
    batch, other = step_inputs(4, seed=1), step_inputs(2, 128, 300, seed=2)
    for inputs in (batch, other, batch, {**batch, "cross_bias": batch["cross_bias"][:, :40].contiguous()}):
        assert_same_step(captured.session.run(inputs), eager.run(inputs))


def test_a_batch_that_is_done_is_not_kept(captured: Graphed) -> None:
    """Its keys and values are as large as those of the next batch, which needs the memory."""
    inputs = step_inputs(4, seed=1)
    captured.session.run(inputs)
    alive = [weakref.ref(value) for value in inputs.values()]
    del inputs

    assert [reference() for reference in alive] == [None] * len(alive)
