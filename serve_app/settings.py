"""The settings of the application, as they come from the command line or a Serve config file."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from asr.build.recipe import TORCH_PRECISIONS, Backend, Precision


class Settings(BaseModel):
    """Replicas and resources (`num_gpus`, …) are not here: they belong to the Serve config."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field("base", description="Name, path or hub id of a Whisper checkpoint.")
    served_model_name: str | None = Field(None, description="Name in the API; by default the last part of `model`.")
    precision: Precision = Field("int8", description="Of the matrix products.")
    backend: Backend = Field("onnx", description="onnx: CPU; tensorrt: GPU; torch: GPU if there is one, fp32 or fp16.")
    threads: int | None = Field(None, ge=1, description="Of the model on a CPU; by default one for each processor.")
    cache_dir: Path | None = Field(None, description="Where built graphs are kept; by default the user's cache.")
    max_batch_size: int = Field(16, ge=1, le=256, description="Utterances that are recognised together.")
    max_batch_audio_s: float = Field(240.0, ge=30, description="Padded audio that is recognised together, in seconds.")
    batch_wait_ms: float = Field(5.0, ge=0, description="How long the first of simultaneous requests waits for others.")

    @model_validator(mode="after")
    def _torch_is_not_quantized(self) -> Settings:
        if self.backend == "torch" and self.precision not in TORCH_PRECISIONS:
            raise ValueError(f"backend torch runs precision {' or '.join(TORCH_PRECISIONS)} only")
        return self

    @property
    def model_name(self) -> str:
        return self.served_model_name or Path(self.model).name
