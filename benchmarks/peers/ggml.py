"""Checkpoints in whisper.cpp's own format, in half precision.

Layout, little endian (whisper.cpp, models/convert-pt-to-ggml.py): u32 magic; eleven i32: the sizes of the model and the
type of its matrices; the mel filters, as i32 rows, i32 columns and float32 values; the text tokens, as i32 count, then
for each its i32 length and bytes; then to the end of the file each parameter under OpenAI's name: i32 rank, i32 length
of the name, i32 type, i32 dimensions from the last to the first, name, data. Whisper.cpp names the special tokens
itself, by the size of the vocabulary.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torchaudio.functional import melscale_fbanks

from asr.build.artefacts import default_cache_dir
from asr.checkpoint import Checkpoint
from asr.features import FFT_SAMPLES, SAMPLE_RATE
from asr.model import Dims

MAGIC = 0x67676D6C  # "ggml"
FLOAT32, FLOAT16 = 0, 1
POSITIONS = ("encoder.positional_embedding", "decoder.positional_embedding")
CONVOLUTION_BIASES = ("encoder.conv1.bias", "encoder.conv2.bias")


def ensure_ggml(checkpoint: Checkpoint, cache_dir: Path | None) -> Path:
    """The file of a checkpoint, written now if the cache lacks it."""
    folder = (cache_dir or default_cache_dir()) / "peers"
    path = folder / f"{checkpoint.name}-ggml-f16-{checkpoint.sha256[:16]}.bin"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as unfinished:
            written = Path(unfinished) / path.name
            with written.open("wb") as file:
                write_ggml(file, checkpoint)
            written.replace(path)
    return path


def write_ggml(file: BinaryIO, checkpoint: Checkpoint) -> None:
    _write_sizes(file, checkpoint.dims)
    _write_mel_filters(file, checkpoint.dims.n_mels)
    _write_vocabulary(file, checkpoint.vocabulary)
    for name, value in checkpoint.read_weights().items():
        _write_parameter(file, name, value)


def _write_sizes(file: BinaryIO, dims: Dims) -> None:
    sizes = (
        *(dims.n_vocab, dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head, dims.n_audio_layer),
        *(dims.n_text_ctx, dims.n_text_state, dims.n_text_head, dims.n_text_layer, dims.n_mels),
    )
    file.write(struct.pack("<I11i", MAGIC, *sizes, FLOAT16))


def _write_mel_filters(file: BinaryIO, n_mels: int) -> None:
    frequencies = FFT_SAMPLES // 2 + 1
    filters = melscale_fbanks(frequencies, 0.0, SAMPLE_RATE / 2, n_mels, SAMPLE_RATE, norm="slaney", mel_scale="slaney")
    file.write(struct.pack("<2i", n_mels, frequencies))
    file.write(filters.T.numpy().astype("<f4").tobytes())


def _write_vocabulary(file: BinaryIO, vocabulary: Sequence[bytes]) -> None:
    file.write(struct.pack("<i", len(vocabulary)))
    for token in vocabulary:
        file.write(struct.pack("<i", len(token)) + token)


def _write_parameter(file: BinaryIO, name: str, value: Tensor) -> None:
    """Matrices and convolutions in float16, the others in float32, as whisper.cpp expects each."""
    array: NDArray[np.float32] = value.numpy()
    if name in CONVOLUTION_BIASES:
        array = array[:, None]  # to be added to (channels, frames)
    kind = FLOAT32 if value.ndim == 1 or name in POSITIONS else FLOAT16
    encoded = name.encode()
    file.write(struct.pack("<3i", array.ndim, len(encoded), kind))
    file.write(struct.pack(f"<{array.ndim}i", *reversed(array.shape)) + encoded)
    file.write(array.astype("<f2" if kind == FLOAT16 else "<f4").tobytes())
