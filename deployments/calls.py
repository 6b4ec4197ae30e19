"""Calls of one deployment by another."""

from __future__ import annotations

import asyncio
from typing import Any


async def result_of(response: Any) -> Any:
    """What a call by a handle gives: `await result_of(handle.method.remote(…))`.

    The call ends with the task that waits for it. Ray by itself ends the calls of a request that is cancelled, but not
    those of a task within a request, such as the recognition of segments after one failed.
    """
    try:
        return await response
    except asyncio.CancelledError:
        response.cancel()
        raise
