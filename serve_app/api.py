"""The OpenAI-compatible HTTP API (platform.openai.com/docs/api-reference/audio): routes and request parsing."""

from __future__ import annotations

import logging
import time
from typing import Annotated, Any, Literal, Protocol

from fastapi import APIRouter, FastAPI, File, Form, Request, Response, UploadFile
from fastapi.responses import JSONResponse, PlainTextResponse

from asr.languages import LANGUAGES
from asr.transcript import DecodingOptions, Transcript
from serve_app.errors import ModelNotFoundError, install_error_handlers
from serve_app.timing import ArrivalClock, Moments, RequestMetrics, seconds_by_stage, server_timing

OPENAI_MODEL = "whisper-1"
"""What unmodified OpenAI clients ask for: accepted as another name of the model that is served."""

CODE_OF_LANGUAGE = {name: code for code, name in LANGUAGES.items()}

logger = logging.getLogger("ray.serve")


class Service(Protocol):
    """What the API needs behind it."""

    async def transcribe(self, content: bytes, options: DecodingOptions) -> Transcript: ...

    async def check_model(self) -> None: ...


def create_api(service: Service, model_name: str) -> FastAPI:
    """The ASGI application for one model."""
    api = FastAPI(title="Rayscribe", description="Speech to text behind the OpenAI audio API.")
    api.state.service, api.state.model_name, api.state.created = service, model_name, int(time.time())
    api.state.metrics = RequestMetrics()
    api.add_middleware(ArrivalClock)
    api.include_router(router)
    install_error_handlers(api)
    return api


router = APIRouter()


@router.post("/v1/audio/transcriptions", response_model=None)
async def create_transcription(
    request: Request,
    file: Annotated[UploadFile, File(description="A recording in any format that FFmpeg reads.")],
    model: Annotated[str, Form(description="The model that is served, or whisper-1.")],
    language: Annotated[str | None, Form(description="ISO 639-1 code; detected if not given.")] = None,
    prompt: Annotated[str, Form(description="Text that guides style and spelling.")] = "",
    temperature: Annotated[float, Form(ge=0, le=1, description="0: greedy, with automatic fallback.")] = 0.0,
    response_format: Annotated[Literal["json", "text"], Form()] = "json",
) -> Response:
    """Transcribe a recording in the language that is spoken in it."""
    check_model_name(request, model)
    options = DecodingOptions(language=language_code(language), prompt=prompt, temperature=temperature)
    service: Service = request.app.state.service
    content = await file.read()
    read = time.perf_counter()
    transcript = await service.transcribe(content, options)
    transcribed = time.perf_counter()
    response = RENDERERS[response_format](transcript)
    report_timing(request, response, transcript, Moments(request.state.started, read, transcribed, time.perf_counter()))
    return response


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The models that can be asked for."""
    names = (request.app.state.model_name, OPENAI_MODEL)
    return {"object": "list", "data": [model_object(request, name) for name in names]}


@router.get("/v1/models/{model:path}")
async def get_model(request: Request, model: str) -> dict[str, Any]:
    """One of the models that can be asked for."""
    check_model_name(request, model)
    return model_object(request, model)


@router.get("/health")
async def health(request: Request) -> Response:
    """200 when the model answers, else 503."""
    service: Service = request.app.state.service
    try:
        await service.check_model()
    except Exception:  # whatever keeps the model from answering is the answer
        logger.exception("health check failed")
        return JSONResponse({"status": "unavailable"}, status_code=503)
    return JSONResponse({"status": "ok"})


def report_timing(request: Request, response: Response, transcript: Transcript, moments: Moments) -> None:
    """Tell the client, and the metrics, where the time went."""
    seconds = seconds_by_stage(transcript.timing, moments)
    response.headers["Server-Timing"] = server_timing(seconds, transcript.timing.recognition.rows)
    request.app.state.metrics.add(transcript, seconds)


def check_model_name(request: Request, model: str) -> None:
    if model not in (request.app.state.model_name, OPENAI_MODEL):
        raise ModelNotFoundError(model, request.app.state.model_name)


def model_object(request: Request, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": request.app.state.created, "owned_by": "rayscribe"}


def language_code(language: str | None) -> str | None:
    """The code of a language given as code ("de"), with a region ("de-CH") or by its English name ("German")."""
    if language is None or not language.strip():
        return None
    wanted = language.strip().lower()
    return CODE_OF_LANGUAGE.get(wanted) or wanted.replace("_", "-").split("-")[0]


def render_json(transcript: Transcript) -> Response:
    return JSONResponse({"text": transcript.text})


def render_text(transcript: Transcript) -> Response:
    return PlainTextResponse(transcript.text + "\n")


RENDERERS = {"json": render_json, "text": render_text}
