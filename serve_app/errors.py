"""The one table from error to HTTP answer, in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`.

The client's fault is explained to it; ours is logged and stays opaque. A client retries 408, 409, 429 and 5xx, so what
would fail again must not be one of these.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from ray.serve.exceptions import BackPressureError
from starlette.exceptions import HTTPException

from asr.errors import InputError

RETRY_AFTER_S = 1

logger = logging.getLogger("ray.serve")


class ModelNotFoundError(Exception):
    """The request names a model that is not served here."""

    def __init__(self, model: str, served: str) -> None:
        super().__init__(model, served)

    def __str__(self) -> str:
        model, served = self.args
        return f"The model {model!r} does not exist here; this server has {served!r}."


def install_error_handlers(api: FastAPI) -> None:
    api.add_exception_handler(InputError, input_error)
    api.add_exception_handler(ModelNotFoundError, model_not_found)
    api.add_exception_handler(RequestValidationError, invalid_request)
    api.add_exception_handler(HTTPException, http_error)
    api.add_exception_handler(BackPressureError, overloaded)
    api.add_exception_handler(Exception, server_error)


async def input_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, InputError)
    return error_response(400, str(error), param=error.param)


async def model_not_found(_: Request, error: Exception) -> Response:
    return error_response(404, str(error), param="model", code="model_not_found")


async def invalid_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = str(first["loc"][-1])
    message = f"{param}: {first['msg']}" if first["type"] != "missing" else f"The field {param!r} is required."
    return error_response(400, message, param=param)


async def http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(error.status_code, str(error.detail), headers=error.headers)


async def overloaded(_: Request, error: Exception) -> Response:
    assert isinstance(error, BackPressureError)
    message = "The server is at its limit; try again in a moment."
    headers = {"Retry-After": str(math.ceil(error.retry_after_s or RETRY_AFTER_S))}
    return error_response(429, message, error_type="rate_limit_error", headers=headers)


async def server_error(_: Request, error: Exception) -> Response:
    logger.error("request failed", exc_info=error)
    return error_response(500, "The server had an error while processing your request.", error_type="server_error")


def error_response(
    status: int,
    message: str,
    *,
    error_type: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    body: dict[str, Any] = {"message": message, "type": error_type, "param": param, "code": code}
    return JSONResponse({"error": body}, status_code=status, headers=headers)
