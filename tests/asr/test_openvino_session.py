"""OpenVINO beside ONNX Runtime: what it computes, what it gives away, and how it fails."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from asr.build.recipe import Precision
from asr.errors import ArtefactError, RecognitionError
from asr.loading import load_engine
from asr.openvino_library import load_openvino
from asr.sessions.openvino import GROUP_SIZE, OpenVinoSession
from asr.transcript import Recognition
from asr.utterance import Utterance
from tests.asr.network_runs import THREADS, Sessions, relative_error, start
from tests.asr.openvino_sessions import cpu_sessions, encoded, first_step
from tests.asr.recognition import recognized
from tests.asr.reference import LoadedModel

TOLERANCES: dict[Precision, float] = {"fp32": 1e-5, "bf16": 0.02, "int8": 0.05}
"""Of keys, values and logits, relative to their size (root mean square)."""


@pytest.fixture(scope="module")
def utterances(best_of_times: Utterance, age_of_foolishness: Utterance) -> list[Utterance]:
    return [best_of_times, age_of_foolishness]


@pytest.fixture(scope="module")
def exact(tiny_en: LoadedModel, artefact_cache: Path) -> Sessions:
    return cpu_sessions(tiny_en, "onnx", "fp32", artefact_cache)


@pytest.fixture(scope="module", params=TOLERANCES)
def precision(request: pytest.FixtureRequest) -> Precision:
    given: Precision = request.param
    return given


@pytest.fixture(scope="module")
def openvino(tiny_en: LoadedModel, artefact_cache: Path, precision: Precision) -> Sessions:
    return cpu_sessions(tiny_en, "openvino", precision, artefact_cache)


@pytest.fixture(scope="module")
def decoder_inputs(
    tiny_en: LoadedModel, exact: Sessions, openvino: Sessions, utterances: list[Utterance]
) -> dict[str, Tensor]:
    """The first step of both utterances, after an exact encoder."""
    tokens = torch.tensor([start(tiny_en)] * len(utterances))
    return first_step(tiny_en.dims, encoded(exact, utterances), tokens, openvino.decoder.dtype)


# --- what it computes


def test_keys_and_values(
    exact: Sessions, openvino: Sessions, utterances: list[Utterance], precision: Precision
) -> None:
    expected, actual = encoded(exact, utterances), encoded(openvino, utterances)

    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert relative_error(actual[name].float(), value) < TOLERANCES[precision], name


def test_logits(exact: Sessions, openvino: Sessions, decoder_inputs: dict[str, Tensor], precision: Precision) -> None:
    expected = exact.decoder.run({name: _float32(value) for name, value in decoder_inputs.items()})
    actual = openvino.decoder.run(decoder_inputs)

    for name, value in expected.items():
        assert relative_error(actual[name].float(), value) < TOLERANCES[precision], name


def _float32(value: Tensor) -> Tensor:
    return value.float() if value.is_floating_point() else value


def test_logits_are_never_rounded_to_bfloat16(openvino: Sessions, decoder_inputs: dict[str, Tensor]) -> None:
    logits = openvino.decoder.run(decoder_inputs)["logits"]

    assert logits.dtype == torch.float32
    assert (logits.bfloat16().float() == logits).float().mean() < 0.01


def test_it_hears_what_float32_hears(
    base: LoadedModel, artefact_cache: Path, utterances: list[Utterance], precision: Precision
) -> None:
    exact = load_engine(base.checkpoint, precision="fp32", backend="onnx", cache_dir=artefact_cache)
    engine = load_engine(base.checkpoint, precision=precision, backend="openvino", cache_dir=artefact_cache)

    expected, actual = (words(recognized(one, *utterances)) for one in (exact, engine))
    assert actual == expected


def words(heard: Sequence[Recognition]) -> list[list[str]]:
    """Without their commas and full stops, which are close calls."""
    return [re.findall(r"\w+", one.text.lower()) for one in heard]


def test_its_types(openvino: Sessions, precision: Precision) -> None:
    """bfloat16 only where the processor has units for it."""
    is_exact = precision == "fp32" or not load_openvino().has_bfloat16

    for session in (openvino.encoder, openvino.decoder):
        assert session.device == torch.device("cpu")
        assert session.dtype == (torch.float32 if is_exact else torch.bfloat16)


def test_what_it_was_asked_for_is_in_effect(openvino: Sessions) -> None:
    types = load_openvino().module.Type
    for session in (openvino.encoder, openvino.decoder):
        assert isinstance(session, OpenVinoSession)
        compiled = [part._compiled for part in session._parts]
        hint = types.bf16 if session.dtype == torch.bfloat16 else types.f32

        assert compiled[0].get_property("INFERENCE_PRECISION_HINT") == hint
        for model in compiled:
            assert model.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE") == GROUP_SIZE
            assert model.get_property("INFERENCE_NUM_THREADS") == THREADS
            assert model.get_property("NUM_STREAMS") == 1
            assert model.get_property("ENABLE_CPU_PINNING") is False


# --- what it gives away


def test_outputs_belong_to_the_caller(openvino: Sessions, decoder_inputs: dict[str, Tensor]) -> None:
    first = openvino.decoder.run(decoder_inputs)
    expected = {name: value.clone() for name, value in first.items()}
    openvino.decoder.run({**decoder_inputs, "tokens": decoder_inputs["tokens"] + 1})

    _assert_equal(first, expected)
    for value in first.values():
        value.fill_(0)
    _assert_equal(openvino.decoder.run(decoder_inputs), expected)


def test_inputs_stay_as_they_are(openvino: Sessions, decoder_inputs: dict[str, Tensor]) -> None:
    before = {name: value.clone() for name, value in decoder_inputs.items()}
    openvino.decoder.run(decoder_inputs)

    _assert_equal(decoder_inputs, before)


def test_inputs_lie_in_memory_as_they_like(openvino: Sessions, decoder_inputs: dict[str, Tensor]) -> None:
    strided = {name: value.transpose(0, -1).contiguous().transpose(0, -1) for name, value in decoder_inputs.items()}

    assert not strided["cross_value_0"].is_contiguous()
    _assert_equal(openvino.decoder.run(strided), openvino.decoder.run(decoder_inputs))


def _assert_equal(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name


# --- how it fails


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    with pytest.raises(ArtefactError, match="cannot be loaded") as caught:
        OpenVinoSession(path, THREADS, torch.float32)

    assert caught.value.args[0] == str(path)


@pytest.mark.parametrize("content", [b"", b"no graph", b"\x08\x0a"], ids=["empty", "text", "cut short"])
def test_a_file_that_is_no_graph(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "decoder.onnx"
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match="cannot be loaded") as caught:
        OpenVinoSession(path, THREADS, torch.float32)

    assert caught.value.args[0] == str(path)


def test_names_that_the_graph_does_not_have(openvino: Sessions, decoder_inputs: dict[str, Tensor]) -> None:
    without = {name: value for name, value in decoder_inputs.items() if name != "tokens"}
    for inputs in (without, {**without, "words": decoder_inputs["tokens"]}, {**decoder_inputs, "words": torch.ones(1)}):
        with pytest.raises(RecognitionError, match=r"the graph takes .*tokens"):
            openvino.decoder.run(inputs)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokens", lambda value: value.float()),
        ("tokens", lambda value: value[0]),
        ("cross_value_0", lambda value: value.double()),
        ("cross_value_0", lambda value: value[..., :-1]),
        ("self_key_0", lambda value: value[:, :-1]),
    ],
    ids=["another type", "another rank", "double", "narrower", "fewer heads"],
)
def test_inputs_that_do_not_fit(
    openvino: Sessions, decoder_inputs: dict[str, Tensor], name: str, change: Callable[[Tensor], Tensor]
) -> None:
    """And the session goes on working."""
    expected = openvino.decoder.run(decoder_inputs)
    with pytest.raises(RecognitionError):
        openvino.decoder.run({**decoder_inputs, name: change(decoder_inputs[name])})

    _assert_equal(openvino.decoder.run(decoder_inputs), expected)
