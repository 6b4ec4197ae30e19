"""The stand-ins for TensorRT are as strict as its bindings."""

from __future__ import annotations

import pytest
import torch

from tests.asr.tensorrt_stand_ins import Checked, ContextStandIn, EngineStandIn, Machine


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
