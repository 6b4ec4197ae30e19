"""From the name of a model to an engine that is ready to run."""

from __future__ import annotations

from pathlib import Path

import torch

from asr.build.artefacts import Artefacts, ensure_artefacts
from asr.build.recipe import Backend, Precision, Recipe, check_precision
from asr.checkpoint import Checkpoint, load_checkpoint
from asr.engine import POSITIONS_MULTIPLE, Engine
from asr.memory import DeviceMemory
from asr.openvino_library import cpu_backend, load_openvino
from asr.processors import usable_cpus
from asr.session import Session
from asr.sessions import openvino
from asr.sessions.cuda_graphs import BATCHES, GraphedSession
from asr.sessions.onnxruntime import OnnxSession
from asr.sessions.pytorch import torch_sessions
from asr.sessions.side_by_side import RUNS, SideBySide
from asr.sessions.tensorrt import TensorRTSession

TORCH_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


def load_engine(
    model: str | Path | Checkpoint,
    *,
    precision: Precision = "int8",
    backend: Backend = "auto",
    threads: int | None = None,
    max_batch: int = BATCHES[-1],
    cache_dir: Path | None = None,
) -> Engine:
    """Open a checkpoint and get it ready to run; what has to be built is built once and kept in `cache_dir`.

    threads: of a model on the CPU; max_batch: rows that a GPU reserves buffers for.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        ArtefactError: a built file cannot be made or used.
        ValueError: the backend does not have this precision.
    """
    chosen = cpu_backend(precision) if backend == "auto" else backend
    check_precision(chosen, precision)
    checkpoint = model if isinstance(model, Checkpoint) else load_checkpoint(model)
    if chosen == "torch":
        return _engine(checkpoint, *_torch_sessions(checkpoint, precision, max_batch))
    if chosen == "openvino":
        load_openvino()  # says what is missing before anything is built
    artefacts = ensure_artefacts(checkpoint, Recipe(precision, chosen), cache_dir)
    return engine_of(checkpoint, artefacts, threads or usable_cpus(), max_batch)


def engine_of(checkpoint: Checkpoint, artefacts: Artefacts, threads: int, max_batch: int = BATCHES[-1]) -> Engine:
    """An engine over what was built of a checkpoint.

    Raises:
        ArtefactError: a built file cannot be used.
    """
    if artefacts.recipe.backend == "tensorrt":
        return _engine(checkpoint, *_tensorrt_sessions(checkpoint, artefacts, max_batch))
    recipe = artefacts.recipe
    encoder, decoder = (cpu_session(path, recipe, threads) for path in (artefacts.encoder, artefacts.decoder))
    runs = min(RUNS, threads)
    if runs > 1:
        encoder = SideBySide(encoder, cpu_session(artefacts.encoder, recipe, threads, runs))
    multiple = openvino.POSITIONS_MULTIPLE if recipe.backend == "openvino" else POSITIONS_MULTIPLE
    dims, tokenizer = checkpoint.dims, checkpoint.tokenizer
    return Engine(dims, tokenizer, encoder, decoder, encoders=runs, positions_multiple=multiple)


def cpu_session(graph: Path, recipe: Recipe, threads: int, runs: int = 1) -> Session:
    """What runs this graph of this recipe on the CPU.

    runs: at a time, which share the threads.

    Raises:
        ArtefactError: the file cannot be used.
    """
    if recipe.backend == "openvino":
        dtype = torch.float32 if recipe.precision == "fp32" else torch.bfloat16
        return openvino.OpenVinoSession(graph, threads, dtype, runs)
    return OnnxSession(graph, threads // runs)


def _engine(checkpoint: Checkpoint, encoder: Session, decoder: Session) -> Engine:
    memory = DeviceMemory(encoder.device) if encoder.device.type == "cuda" else None
    return Engine(checkpoint.dims, checkpoint.tokenizer, encoder, decoder, memory)


def _torch_sessions(checkpoint: Checkpoint, precision: Precision, max_batch: int) -> tuple[Session, Session]:
    dims, dtype = checkpoint.dims, TORCH_DTYPES[precision]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder_module, decoder_module = checkpoint.modules()
    encoder, decoder = torch_sessions(encoder_module.to(dtype), decoder_module.to(dtype), dims, device)
    return encoder, GraphedSession(decoder, dims, max_batch=max_batch) if device.type == "cuda" else decoder


def _tensorrt_sessions(checkpoint: Checkpoint, artefacts: Artefacts, max_batch: int) -> tuple[Session, Session]:
    device = torch.device("cuda")
    encoder, decoder = (TensorRTSession(path, device) for path in (artefacts.encoder, artefacts.decoder))
    return encoder, GraphedSession(decoder, checkpoint.dims, max_batch=max_batch)
