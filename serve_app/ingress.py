"""The deployment behind the HTTP port."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from asr.errors import InputError
from asr.heap import give_back_free_memory
from asr.transcript import DecodingOptions, Transcript
from deployments.calls import result_of
from serve_app.api import create_api

HEALTH_TIMEOUT_S = 10.0
BY_VALUE_BYTES = 2 << 20
"""A larger recording goes by way of the object store, which copies it less; what Ray sends otherwise, where its
environment says so, are messages of up to 4 MB."""


@serve.deployment(max_ongoing_requests=256, health_check_period_s=5, ray_actor_options={"num_cpus": 0})
@serve.ingress()
class Ingress:
    """Serves the API of `serve_app.api` over a handle to the Transcriber."""

    def __init__(self, transcriber: DeploymentHandle[Any], model_name: str) -> None:
        self._transcriber = transcriber
        self._model_name = model_name

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Serve calls this after the constructor, in the replica."""
        return create_api(self, self._model_name)

    async def transcribe(self, content: bytes, options: DecodingOptions) -> Transcript:
        """
        Raises:
            InputError: the request cannot be served as it is.
        """
        transcriber = self._transcriber
        if len(content) > BY_VALUE_BYTES:
            transcriber = transcriber.options(_by_reference=True)
        result: Transcript | InputError = await result_of(transcriber.transcribe.remote(content, options))
        if isinstance(result, InputError):
            raise result
        return result

    async def check_health(self) -> None:
        """Ray calls it every few seconds: the time to give back the memory of uploads."""
        await asyncio.to_thread(give_back_free_memory)

    async def check_model(self) -> None:
        """Raises if the whole way to the model and back does not work."""
        await asyncio.wait_for(result_of(self._transcriber.check_model.remote()), HEALTH_TIMEOUT_S)
