"""A call of another deployment ends with its caller."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deployments.calls import result_of
from tests.deployments.calls import Call


async def answer(value: Any) -> Any:
    if isinstance(value, BaseException):
        raise value
    return value


def test_what_the_call_gives() -> None:
    call = Call(answer("text"))

    assert asyncio.run(result_of(call)) == "text"
    assert not call.cancelled


def test_what_the_call_raises() -> None:
    call = Call(answer(ValueError("wrong")))

    with pytest.raises(ValueError, match="wrong"):
        asyncio.run(result_of(call))
    assert not call.cancelled


def test_a_caller_that_is_cancelled_cancels_the_call() -> None:
    call = Call(answer(asyncio.CancelledError()))

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(result_of(call))
    assert call.cancelled


def test_a_caller_that_waits_no_longer_cancels_the_call() -> None:
    call = Call(asyncio.sleep(60))

    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(result_of(call), 0.01))
    assert call.cancelled
