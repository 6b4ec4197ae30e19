"""The check of a GPU, where there is none: what needs no CUDA runs, and recordings stand in for CUDA graphs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from asr.devices import GPUS
from asr.errors import OutOfMemoryError
from asr.roofline import MODELS, PRECISIONS, floor
from asr.sessions.cuda_graphs import Step
from asr.sessions.pytorch import TorchSession
from benchmarks import gpu_check
from benchmarks.gpu import splitting
from benchmarks.gpu import timing as gpu_timing
from benchmarks.gpu.correctness import Bench, Outcome, agreement, batches, graphs, parity
from benchmarks.gpu.model import QUICK_DIMS, Model, checked_model, made_up_vocabulary, speech_like, utterances
from benchmarks.gpu.report import CheckResult, Report, gpu_named
from benchmarks.gpu.timing import Case, Place, Plan, Timing, time_cases
from benchmarks.gpu_check import Check, main
from tests.asr.recorded_graphs import Recorder

CPU = torch.device("cpu")
QUICK = ["--device", "cpu", "--quick"]
CUDA_ONLY = ("CUDA graphs as without, fp32", "CUDA graphs as without, fp16", "a batch that the device refuses is split")


def rows_of(document: str, section: str) -> list[list[str]]:
    """Cells of the table in this section, without its head."""
    body = document.split(f"## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def statuses(document: str) -> dict[str, str]:
    return {row[0]: row[1] for row in rows_of(document, "Checks")}


# --- the command


def test_everything_that_needs_no_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpu.md"
    assert main([*QUICK, "--model", "tiny", "--output", str(path)]) == 0
    document = path.read_text()
    expected = {check.title: "passed" for check in gpu_check.CHECKS} | dict.fromkeys(CUDA_ONLY, "not run")

    assert capsys.readouterr().out.strip() == document.strip()
    assert torch.__version__ in document
    assert statuses(document) == expected | {"TensorRT plans as on the CPU": "not run"}
    assert all(row[2] == "no CUDA" for row in rows_of(document, "Checks") if row[0] in CUDA_ONLY)
    assert [row[:4] for row in rows_of(document, "Times")] == [
        ["fp32", positions, batch, "eager"] for positions in ("40", "100") for batch in ("1", "2")
    ]
    for row in rows_of(document, "Times"):
        encoder_ms, step_ms, tokens, row_ms = map(float, row[4:8])
        assert row_ms == pytest.approx((encoder_ms + tokens * step_ms) / float(row[2]), abs=0.1)
    assert "CUDA graphs not run: no CUDA" in document
    assert "Left out" not in document


def test_without_time_everything_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--minutes", "0"]) == 0
    document = capsys.readouterr().out
    titles = [check.title for check in (*gpu_check.CHECKS, *gpu_check.LAST_CHECKS)]
    cases = [f"times of fp32, {positions} positions, batch {batch}" for positions in (40, 100) for batch in (1, 2)]

    assert statuses(document) == dict.fromkeys(titles, "left out")
    assert all(row[-1] == "left out" and not row[4] for row in rows_of(document, "Times"))
    assert document.split("## Left out for want of time\n\n")[1].strip() == "\n".join(
        f"- {what}" for what in (*titles, *cases)
    )


def raising(bench: Bench) -> Outcome:
    raise RuntimeError("CUDA error: an illegal memory access |\nwas encountered")


@pytest.mark.parametrize(
    ("check", "detail"),
    [
        (raising, "RuntimeError: CUDA error: an illegal memory access \\| was encountered"),
        (lambda bench: Outcome(passed=False, figures="3 of 4 tokens equal"), "3 of 4 tokens equal"),
    ],
)
def test_a_check_that_fails_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], check: Callable[[Bench], Outcome], detail: str
) -> None:
    sound = Check("sound", lambda bench: Outcome(passed=True, figures="fine"))
    monkeypatch.setattr(gpu_check, "CHECKS", (Check("unsound", check), sound))

    assert main(QUICK) == 1
    first, second, *_ = rows_of(capsys.readouterr().out, "Checks")
    assert first[:3] == ["unsound", "failed", detail]
    assert second[:3] == ["sound", "passed", "fine"]


def test_times_that_fail_leave_a_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*arguments: object) -> float:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(gpu_check, "CHECKS", ())
    monkeypatch.setattr(gpu_timing, "time_step", broken)

    assert main(QUICK) == 1
    assert ["times", "failed", "RuntimeError: no kernel image", ""] in rows_of(capsys.readouterr().out, "Checks")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main([])
    assert exited.value.code == 2
    assert "--device cpu" in capsys.readouterr().err


# --- the checks see what is wrong


@pytest.fixture(scope="module")
def model() -> Model:
    return checked_model(quick=True)


@pytest.fixture
def bench(model: Model) -> Bench:
    heard = [utterance for utterance in utterances(model.dims.n_mels) if utterance.duration_s < 3]
    return Bench(model, heard, CPU, capture=None, steps=5, mixes=((1, 0), (0, 0, 0)))


@dataclass(frozen=True)
class LeakyModel(Model):
    """A model of which some of the first row is in all."""

    def sessions(self, device: torch.device, dtype: torch.dtype) -> tuple[TorchSession, TorchSession]:
        encoder, decoder = super().sessions(device, dtype)
        run = decoder.run

        def leaky(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            outputs = run(inputs)
            outputs["logits"] += 0.1 * outputs["logits"][:1]
            return outputs

        decoder.run = leaky  # type: ignore[method-assign]
        return encoder, decoder


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_rows_that_leak_are_seen(bench: Bench, precision: str) -> None:
    assert batches(bench, precision).passed
    leaky = LeakyModel(**vars(bench.model))
    assert not batches(replace(bench, model=leaky), precision).passed


def test_parity_sees_another_weight(bench: Bench) -> None:
    changed = checked_model(quick=True)
    other = replace(bench, model=changed)
    assert parity(other, "fp32").passed  # and has the reference made
    changed.decoder.ln.bias.data[0] += 1

    assert not parity(other, "fp32").passed


@pytest.mark.parametrize(("check", "captures"), [(graphs, 2), (batches, 3)])
def test_graphs_do_as_the_steps_without(bench: Bench, check: Callable[[Bench, str], Outcome], captures: int) -> None:
    """Of two and of four rows, and where rows are compared with what they are alone, of one."""
    recorder = Recorder()
    outcome = check(replace(bench, capture=recorder), "fp32")

    assert outcome.passed, outcome
    assert recorder.replays > recorder.captures == captures


def test_steps_that_are_not_replayed_are_seen(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(step: Step) -> Step:
        raise RuntimeError("operation not permitted when stream is capturing")

    outcome = graphs(replace(bench, capture=refuse), "fp32")
    assert not outcome.passed
    assert "0 of 8 steps replayed" in outcome.figures


def test_a_batch_that_is_not_split_is_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    split = splitting.by_estimate(bench)
    assert split.passed
    assert "16 of 16 rows" in split.figures
    monkeypatch.setattr(splitting.Allotted, "admit", lambda memory, needed_bytes: None)

    unsplit = splitting.by_estimate(bench)
    assert not unsplit.passed
    assert "batches of [16] rows" in unsplit.figures


def test_agreement_excuses_rounding_alone() -> None:
    """Two steps of three tokens: a close one, and one that is decided."""
    expected = torch.tensor([[[1.0, 1.001, -2.0], [3.0, 0.0, -3.0]]])
    rounded = expected + torch.tensor([[[0.002, 0.0, 0.0], [0.0, 0.001, 0.0]]])
    found = agreement(rounded, expected)
    assert (found.equal, found.tokens, found.wrong) == (1, 2, 0)
    assert found.error == pytest.approx(0.002 * (2 / 3) ** 0.5 / 6**0.5, rel=0.01)
    assert found.within(1e-3)
    assert not found.within(1e-4)

    assert not agreement(torch.full_like(expected, torch.nan), expected).within(1.0)
    spread = torch.randn(1, 2, 5000, generator=torch.Generator().manual_seed(0))
    spread[0, :, 7] = 5.0
    moved = spread.clone()
    moved[0, 1, 7], moved[0, 1, 8] = spread[0, 1, 8], 5.0  # little of the whole, but what is said
    assert agreement(moved, spread).wrong == 1


# --- times


PLAN = Plan(QUICK_DIMS, ("fp32",), positions=(40,), batches=(1, 2), repeats=1)


def test_times_with_and_without_graphs() -> None:
    place = Place(CPU, GPUS["t4"], Recorder())
    found = list(time_cases(PLAN, place, lambda needed_s: True))

    assert [(timing.case.batch, timing.decoder) for timing in found] == [
        (batch, decoder) for batch in (1, 2) for decoder in ("eager", "CUDA graphs")
    ]
    for timing in found:
        bound = floor(QUICK_DIMS, GPUS["t4"], PRECISIONS["fp32"], batch=timing.case.batch, positions=40, tokens=3)
        assert timing.floor_ms == bound.row_ms
        assert timing.row_ms is not None
        assert timing.row_ms > timing.floor_ms
        assert not timing.note


def test_what_has_no_room_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    time_encoder = gpu_timing.time_encoder

    def cramped(session: TorchSession, dims: object, case: Case, repeats: int) -> object:
        if case.batch > 1:
            raise OutOfMemoryError("no room")
        return time_encoder(session, QUICK_DIMS, case, repeats)

    monkeypatch.setattr(gpu_timing, "time_encoder", cramped)
    first, second = time_cases(PLAN, Place(CPU, None, None), lambda needed_s: True)
    assert (first.note, second.note) == ("", "out of memory")
    assert first.row_ms is not None
    assert second.row_ms is None


def test_steps_that_cannot_be_captured_are_not_passed_off_as_graphs() -> None:
    def refuse(step: Step) -> Step:
        raise RuntimeError("operation not permitted when stream is capturing")

    found = list(time_cases(PLAN, Place(CPU, None, refuse), lambda needed_s: True))
    assert [timing.note for timing in found if timing.decoder == "CUDA graphs"] == ["could not be captured"] * 2


def test_a_case_is_begun_only_with_time_for_it() -> None:
    asked = []

    def may_go_on(needed_s: float) -> bool:
        asked.append(needed_s)
        return len(asked) < 2

    found = list(time_cases(PLAN, Place(CPU, None, None), may_go_on))
    assert [timing.left_out for timing in found] == [False, True]
    assert asked[0] == 0.0 < asked[1]


# --- the document


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Tesla T4", "t4"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA L40S", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_gpus_are_known_by_name(name: str, key: str | None) -> None:
    assert gpu_named(name) == (GPUS[key] if key else None)


def report(timings: Sequence[Timing], checks: Sequence[CheckResult] = ()) -> Report:
    return Report(CPU, GPUS["t4"], "tiny.en", "Whisper small", checks, timings)


def test_times_stand_beside_the_floor() -> None:
    case = Case("fp16", 1500, 8)
    bound = floor(MODELS["small"], GPUS["t4"], PRECISIONS["fp16"], batch=8, positions=1500, tokens=case.tokens)
    timing = Timing(case, "CUDA graphs", 0.08, 0.004, bound.row_ms, 3 << 30)
    [row] = rows_of(str(report([timing])), "Times")

    row_ms = (80 + 100 * 4) / 8
    assert row[:8] == ["fp16", "1500", "8", "CUDA graphs", "80.00", "4.00", "100", f"{row_ms:.2f}"]
    assert row[8:] == [f"{bound.row_ms:.2f}", f"{row_ms / bound.row_ms:.2f}", "3072", ""]
    assert 34 < bound.row_ms < 36


def test_the_peak_is_the_largest_of_all() -> None:
    checks = [CheckResult("a", "passed", "", 5 << 20), CheckResult("b", "not run", "")]
    timings = [Timing(Case("fp32", 400, 1), "eager", 1.0, 1.0, None, 7 << 20)]

    assert "| peak memory | 7 MiB |" in str(report(timings, checks))
    assert "peak memory" not in str(report([], checks[1:]))


# --- what is heard


def test_speech_like_features_are_always_the_same() -> None:
    first, again, other = (speech_like(80, 1.0, seed) for seed in (3, 3, 4))
    assert first.shape == (80, 100)
    assert (first == again).all()
    assert not (first == other).all()


def test_random_weights_hear_a_difference(bench: Bench) -> None:
    said = [tuple(tokens) for tokens in bench.reference.texts.tolist()]
    assert len(set(said)) == len(bench.utterances)
    assert all(len(set(tokens)) > 2 for tokens in said)


def test_a_made_up_vocabulary_is_one() -> None:
    vocabulary = made_up_vocabulary(51_865)
    assert len(set(vocabulary)) == len(vocabulary) == 50_257
