"""Decoder steps by replay, with recordings in the place of CUDA graphs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from asr.decoding import BatchDecoder, Encoded
from asr.engine import Engine
from asr.errors import AsrError, OutOfMemoryError, RecognitionError
from asr.features import SAMPLE_RATE, LogMel
from asr.kv_cache import BLOCK, KvCache
from asr.model import (
    MASKED,
    Decoder,
    Dims,
    build_modules,
    decoder_input_names,
    decoder_output_names,
)
from asr.session import Session
from asr.sessions.cuda_graphs import BATCHES, CAPACITIES, POSITIONS, Bucket, GraphedSession, Step
from asr.sessions.pytorch import TorchSession, torch_sessions
from asr.tokenizer import Tokenizer
from asr.transcript import DecodingOptions, Recognition
from asr.utterance import Utterance
from tests.asr.recorded_graphs import Copies, Recorder
from tests.asr.reference import LoadedModel, random_weights

CPU = torch.device("cpu")
TOLERANCE = 1e-4  # the buckets' sums are longer, by zeros, and may come in another order
STEP_DIMS = Dims(80, 1500, 8, 2, 1, 101, 448, 8, 2, 2)

Inputs = dict[str, Tensor]


# --- single steps, of a model small enough for every bucket


def torch_session(decoder: Decoder, dims: Dims) -> TorchSession:
    return TorchSession(decoder, decoder_input_names(dims), decoder_output_names(), CPU)


@pytest.fixture(scope="module")
def eager() -> TorchSession:
    return torch_session(build_modules(STEP_DIMS, random_weights(STEP_DIMS))[1], STEP_DIMS)


@dataclass(frozen=True)
class Graphed:
    """A session, and what it has captured."""

    session: GraphedSession
    recorder: Recorder

    @classmethod
    def of(cls, session: TorchSession, dims: Dims = STEP_DIMS) -> Graphed:
        recorder = Recorder()
        return cls(GraphedSession(session, dims, recorder), recorder)


@pytest.fixture
def graphed(eager: TorchSession) -> Graphed:
    return Graphed.of(eager)


def step_inputs(rows: int, capacity: int = BLOCK, positions: int = 40, *, steps: int = 1, seed: int = 0) -> Inputs:
    """Inputs of single steps at different lengths; what is beyond them is noise."""
    generator = torch.Generator().manual_seed(seed)
    dims = STEP_DIMS
    heads = (rows, dims.n_text_head)
    shapes = {
        "self_key": (capacity, dims.head_dim),
        "self_value": (capacity, dims.head_dim),
        "cross_key": (dims.head_dim, positions),
        "cross_value": (positions, dims.head_dim),
    }
    ends = positions - torch.arange(rows) % 7
    return {
        "tokens": torch.randint(dims.n_vocab, (rows, steps), generator=generator),
        "past_lengths": (capacity - 1 - 5 * torch.arange(rows)).clamp(min=0),
        "logit_positions": torch.zeros(rows, 1, dtype=torch.int64),
        "cross_bias": torch.where(torch.arange(positions) < ends[:, None], 0.0, MASKED),
        **{
            f"{part}_{layer}": torch.randn(*heads, *shape, generator=generator)
            for part, shape in shapes.items()
            for layer in range(dims.n_text_layer)
        },
    }


def assert_same_step(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=0, atol=TOLERANCE)


# --- the choice of a bucket


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 31, 32])
def test_the_batch_of_a_bucket(rows: int) -> None:
    assert Bucket.of(step_inputs(rows)) == Bucket(min(size for size in BATCHES if size >= rows), 64, 256)


@pytest.mark.parametrize(("capacity", "bucket"), [(64, 64), (128, 128), (192, 256), (256, 256), (320, 448), (448, 448)])
def test_the_capacity_of_a_bucket(capacity: int, bucket: int) -> None:
    assert Bucket.of(step_inputs(1, capacity)) == Bucket(1, bucket, 256)


@pytest.mark.parametrize(
    ("positions", "bucket"),
    [(1, 256), (256, 256), (257, 384), (384, 384), (385, 512), (513, 768), (769, 1024), (1025, 1500), (1500, 1500)],
)
def test_the_positions_of_a_bucket(positions: int, bucket: int) -> None:
    assert Bucket.of(step_inputs(1, positions=positions)) == Bucket(1, 64, bucket)


def test_the_cache_grows_through_the_buckets() -> None:
    """Every capacity that a cache can have is within a bucket: none is left to run eagerly unseen."""
    cache = KvCache(STEP_DIMS, 1, CPU)
    one = torch.zeros(STEP_DIMS.n_text_layer, 2, 1, STEP_DIMS.n_text_head, 1, STEP_DIMS.head_dim)
    seen = set()
    for _ in range(STEP_DIMS.n_text_ctx):
        cache.append(one, torch.ones(1, dtype=torch.int64))
        bucket = Bucket.of({**step_inputs(1), **cache.tensors()})
        assert bucket is not None
        seen.add(bucket.capacity)
    assert seen == set(CAPACITIES)


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param(step_inputs(2, steps=3), id="a prefix"),
        pytest.param({**step_inputs(1), "logit_positions": torch.zeros(1, 2, dtype=torch.int64)}, id="two logits"),
        pytest.param(step_inputs(33), id="more rows"),
        pytest.param(step_inputs(1, 449), id="a longer cache"),
        pytest.param(step_inputs(1, positions=1501), id="more positions"),
    ],
)
def test_what_is_in_no_bucket_runs_as_it_is(eager: TorchSession, graphed: Graphed, inputs: Inputs) -> None:
    assert Bucket.of(inputs) is None
    assert_same_step(graphed.session.run(inputs), eager.run(inputs))
    assert graphed.recorder.captures == graphed.recorder.replays == 0


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


# --- what cannot be captured runs eagerly


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


# --- whole batches, decoded as they are in service

SECONDS = (0.0, 3.0, 1.0, 2.0, 0.4)
"""Of audio, which bound the tokens: 20, 95, 45, 70 and 30, so rows drop out, and the cache grows beyond a block."""
ENDS = (200, 330, 40, 300, 256)
"""Encoder positions of each row."""
TEMPERATURES = (1.0, 1.0, 0.0, 1.0, 0.0)
"""Left to itself, a model of random weights says the same few tokens again and again; a draw has it say others."""


@dataclass(frozen=True)
class Crowd:
    """Rows that a model of random weights has to decode. cross: of all of them, at as many positions as the longest."""

    dims: Dims
    tokenizer: Tokenizer
    session: TorchSession
    cross: Mapping[str, Tensor]

    def decode(self, session: Session, rows: Sequence[int]) -> list[Recognition]:
        positions = max(ENDS[row] for row in rows)
        bias = torch.stack([torch.where(torch.arange(positions) < ENDS[row], 0.0, MASKED) for row in rows])
        cross = {
            name: (value[list(rows), ..., :positions] if "key" in name else value[list(rows), :, :positions])
            for name, value in self.cross.items()
        }
        encoded = Encoded({name: value.contiguous() for name, value in cross.items()}, bias)
        decoder = BatchDecoder(session, self.tokenizer, self.dims)
        options = [
            DecodingOptions(language="en", prompt="Hear, hear!" * (row == 3), temperature=TEMPERATURES[row])
            for row in rows
        ]
        return decoder.decode(encoded, options, ["en"] * len(rows), [SECONDS[row] for row in rows])


@pytest.fixture(scope="module")
def crowd(small_dims: Dims, small_vocabulary: Sequence[bytes]) -> Crowd:
    dims = replace(small_dims, n_text_ctx=224)
    generator = torch.Generator().manual_seed(0)
    rows, heads = len(ENDS), dims.n_text_head
    shapes = {"cross_key": (dims.head_dim, max(ENDS)), "cross_value": (max(ENDS), dims.head_dim)}
    cross = {
        f"{part}_{layer}": 3 * torch.randn(rows, heads, *shape, generator=generator)
        for layer in range(dims.n_text_layer)
        for part, shape in shapes.items()
    }
    session = torch_session(build_modules(dims, random_weights(dims))[1], dims)
    return Crowd(dims, Tokenizer(small_vocabulary, dims.n_vocab), session, cross)


@pytest.fixture(scope="module")
def alone(crowd: Crowd) -> list[Recognition]:
    """What each row is without graphs and neighbours."""
    return [crowd.decode(crowd.session, [row])[0] for row in range(len(ENDS))]


def assert_heard(actual: Sequence[Recognition], expected: Sequence[Recognition]) -> None:
    assert [heard.tokens for heard in actual] == [heard.tokens for heard in expected]
    for heard, other in zip(actual, expected, strict=True):
        assert heard.avg_logprob == pytest.approx(other.avg_logprob, abs=TOLERANCE)


def test_the_crowd_is_worth_comparing(alone: Sequence[Recognition]) -> None:
    assert len({heard.tokens for heard in alone}) == len(alone)
    assert max(len(set(heard.tokens)) for heard in alone) > BLOCK


@pytest.mark.parametrize("rows", [[0], [1], [3], [1, 1], [2] * 3, [4] * 5, [0, 1, 2, 3, 4], [4, 1], [3, 2, 0]])
def test_a_batch_by_replay(crowd: Crowd, alone: Sequence[Recognition], rows: Sequence[int]) -> None:
    graphed = Graphed.of(crowd.session, crowd.dims)
    heard = crowd.decode(graphed.session, rows)

    assert_heard(heard, [alone[row] for row in rows])
    longest = max(len(alone[row].tokens) for row in rows)
    assert graphed.recorder.replays - graphed.recorder.captures == longest - 1  # the first comes with the prefix


def test_batches_after_each_other(crowd: Crowd, alone: Sequence[Recognition]) -> None:
    graphed = Graphed.of(crowd.session, crowd.dims)
    for rows in ([0, 1, 2, 3, 4], [2], [1, 3], [0, 1, 2, 3, 4], [4, 4, 0], [1]):
        assert_heard(crowd.decode(graphed.session, rows), [alone[row] for row in rows])

    captures = graphed.recorder.captures
    crowd.decode(graphed.session, [0, 1, 2, 3, 4])
    assert graphed.recorder.captures == captures


def test_languages_are_detected_by_replay(crowd: Crowd) -> None:
    graphed = Graphed.of(crowd.session, crowd.dims)
    encoded = Encoded(dict(crowd.cross), torch.zeros(len(ENDS), max(ENDS)))
    expected, actual = (
        BatchDecoder(session, crowd.tokenizer, crowd.dims).detect_languages(encoded)
        for session in (crowd.session, graphed.session)
    )

    assert actual == expected
    assert graphed.recorder.captures == int(crowd.tokenizer.is_multilingual)


# --- real speech

Build = Callable[[Session], Engine]


@pytest.fixture(scope="module")
def build(tiny_en: LoadedModel) -> Build:
    """An engine with this decoder session."""
    dims = tiny_en.dims
    encoder, _ = torch_sessions(tiny_en.encoder, tiny_en.decoder, dims)
    return lambda decoder: Engine(dims, tiny_en.checkpoint.tokenizer, encoder, decoder)


@pytest.fixture(scope="module")
def utterances(speech: NDArray[np.float32]) -> list[Utterance]:
    log_mel, english = LogMel(80), DecodingOptions(language="en")
    seconds = ((0.5, 4.7), (6.4, 8.5), (10.5, 13.1))
    cuts = (speech[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] for start, end in seconds)
    return [Utterance(log_mel(cut), english) for cut in cuts]


def test_speech_by_replay(tiny_en: LoadedModel, build: Build, utterances: Sequence[Utterance]) -> None:
    session = torch_session(tiny_en.decoder, tiny_en.dims)
    graphed = Graphed.of(session, tiny_en.dims)
    expected = [build(session).recognize([utterance])[0] for utterance in utterances]
    engine = build(graphed.session)

    def texts(results: Sequence[Recognition | AsrError]) -> list[str]:
        return [result.text for result in results if isinstance(result, Recognition)]

    assert "the best of times" in texts(expected)[0]
    assert texts(engine.recognize(utterances)) == texts(expected)
    assert texts(engine.recognize([utterances[1]] * 2)) == texts(expected)[1:2] * 2
    assert graphed.recorder.replays > graphed.recorder.captures > 1
