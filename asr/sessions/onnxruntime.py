"""Session over an ONNX graph in ONNX Runtime, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from onnxruntime import InferenceSession, SessionOptions  # type: ignore[attr-defined]  # re-exported without __all__
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException
from torch import Tensor

from asr.errors import ArtefactError, RecognitionError

PROVIDERS = ["CPUExecutionProvider"]
RUN_ERRORS = (Fail, InvalidArgument, RuntimeException)


class OnnxSession:
    """Runs the graph at `path` with `threads` threads. Several threads may run it, each of which has so many."""

    device = torch.device("cpu")

    def __init__(self, path: Path, threads: int) -> None:
        """
        Raises:
            ArtefactError: the file is missing, damaged or not a graph that ONNX Runtime accepts.
        """
        options = SessionOptions()
        options.intra_op_num_threads = threads  # ONNX Runtime knows neither OMP_NUM_THREADS nor a container's share
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others need the cores too
        options.log_severity_level = 3
        try:
            self._session = InferenceSession(path, options, providers=PROVIDERS)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            raise ArtefactError(str(path), f"cannot be loaded ({error})") from error
        is_half = any(graph_input.type == "tensor(float16)" for graph_input in self._session.get_inputs())
        self.dtype = torch.float16 if is_half else torch.float32
        self._output_names = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        try:
            outputs = self._session.run(self._output_names, {name: value.numpy() for name, value in inputs.items()})
        except RUN_ERRORS as error:
            raise RecognitionError(str(error)) from error
        return {name: torch.from_numpy(value) for name, value in zip(self._output_names, outputs, strict=True)}
