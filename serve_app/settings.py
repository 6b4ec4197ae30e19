"""The settings of the application, as they come from the command line or a Serve config file."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from asr.build.recipe import Backend, Precision, check_precision


class Settings(BaseModel):
    """Replicas and resources (`num_gpus`, …) are not here: they belong to the Serve config."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field("base", description="Name, path or hub id of a Whisper checkpoint.")
    served_model_name: str | None = Field(None, description="Name in the API; by default the last part of `model`.")
    precision: Precision = Field("int8", description="Of the matrix products.")
    backend: Backend = Field(
        "auto",
        description="auto: openvino where it is the faster one, else onnx; onnx, openvino: CPU; tensorrt: GPU; "
        "torch: GPU if there is one, fp32 or fp16.",
    )
    threads: int | None = Field(None, ge=1, description="Of the model on a CPU; by default one for each processor.")
    cache_dir: Path | None = Field(None, description="Where built graphs are kept; by default the user's cache.")
    max_batch_size: int | None = Field(
        None, ge=1, le=256, description="Utterances decoded at a time; by default 32 with tensorrt, else 16."
    )
    max_batch_audio_s: float | None = Field(
        None, ge=0, description="Padded audio encoded at a time; by default 240 with tensorrt, else one utterance."
    )
    batch_wait_ms: float = Field(0.0, ge=0, description="How long a request waits for others to be encoded with it.")

    @model_validator(mode="after")
    def _backend_has_the_precision(self) -> Settings:
        check_precision(self.backend, self.precision)
        return self

    @property
    def model_name(self) -> str:
        return self.served_model_name or Path(self.model).name
