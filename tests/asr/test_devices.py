"""How fast this processor is, as it is measured."""

from __future__ import annotations

import time

import pytest
import torch

import asr.devices
from asr.devices import this_cpu


class TestThisCpu:
    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(asr.devices, "BUDGET_S", 0.01)
        monkeypatch.setattr(asr.devices, "MATRIX_SIZES", (128,))
        monkeypatch.setattr(asr.devices, "COPIED_BYTES", 2**24)

    def test_is_measured_in_units_a_second(self) -> None:
        device = this_cpu()

        assert 1e8 < device.bandwidth < 1e13
        assert 1e8 < device.peaks["fp32"] <= device.peaks["fp16"] < 1e15
        assert device.peaks["int8"] > device.peaks["fp32"]
        assert device.memory > 1e9

    def test_int8_is_assumed_where_torch_refuses_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("not on this processor")

        monkeypatch.setattr(torch, "_int_mm", refuse)
        device = this_cpu()

        assert device.peaks["int8"] == 4 * device.peaks["fp32"]
        assert "assumed" in device.note

    def test_an_emulated_type_is_not_tried_at_every_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now, tried = [0.0], list[int]()
        monkeypatch.setattr(asr.devices, "MATRIX_SIZES", (128, 512, 2048))
        monkeypatch.setattr(time, "perf_counter", lambda: now[0])

        def slow(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            tried.append(len(left))
            now[0] += 2 * len(left) ** 3 / 1e9  # 1 GFLOP/s
            return left

        assert asr.devices._matrix_rate(torch.int8, slow) == pytest.approx(1e9)
        assert set(tried) == {128, 512}
