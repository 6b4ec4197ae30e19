"""The network of Silero VAD as products of matrices: the probabilities of its own graph, in a third of the time.

Its own graph convolves every frame by itself, at four positions, which runtimes are slow at. Within a frame, each of
these convolutions is the product with a matrix, and the frames of a recording are the rows of one factor.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx import numpy_helper, parser
from onnxruntime import InferenceSession, SessionOptions  # type: ignore[attr-defined]  # re-exported without __all__

FRAME_SAMPLES = 512  # 32 ms at 16 kHz
CONTEXT_SAMPLES = 64  # of the frame before, heard with each
QUARTER_SAMPLES = 64  # of a spectrum
SPECTRA = 4  # of a frame: of 16 ms each, 8 ms apart
BINS = 129
STRIDES = (1, 2, 2, 1)  # of the convolutions over the spectra of a frame
STATE_SIZE = 128
BLOCK_SAMPLES = 512 * FRAME_SAMPLES
"""What is heard at a time, which bounds the memory that a long recording takes."""

GRAPH = """
<ir_version: 8, opset_import: ["": 16]>
speech (float[frames, 576] samples, float[1, 1, 128] hidden, float[1, 1, 128] cell)
    => (float[frames] probabilities, float[1, 1, 128] next_hidden, float[1, 1, 128] next_cell)
{
    mirrored = Pad <mode = "reflect"> (samples, mirrored_samples)
    quarters = Reshape (mirrored, quarters_shape)
    overlapping = Gather <axis = 1> (quarters, quarters_of_spectrum)
    stretches = Reshape (overlapping, stretches_shape)
    spectra = MatMul (stretches, fourier)
    squares = Mul (spectra, spectra)
    real, imaginary = Split <axis = 2> (squares, parts)
    power = Add (real, imaginary)
    magnitude = Sqrt (power)
    layer_0 = Flatten (magnitude)
    sum_0 = Gemm (layer_0, weight_0, bias_0)
    layer_1 = Relu (sum_0)
    sum_1 = Gemm (layer_1, weight_1, bias_1)
    layer_2 = Relu (sum_1)
    sum_2 = Gemm (layer_2, weight_2, bias_2)
    layer_3 = Relu (sum_2)
    sum_3 = Gemm (layer_3, weight_3, bias_3)
    layer_4 = Relu (sum_3)
    sequence = Unsqueeze (layer_4, batch_axis)
    states, next_hidden, next_cell = LSTM <hidden_size = 128> (
        sequence, lstm_input, lstm_recurrent, lstm_bias, , hidden, cell)
    state = Reshape (states, states_shape)
    heard = Relu (state)
    logit = Gemm (heard, output_weight, output_bias)
    probability = Sigmoid (logit)
    probabilities = Reshape (probability, list_shape)
}
"""


class SpeechNetwork:
    """Waveform → how likely there is speech in each of its frames. One instance may be shared by threads."""

    def __init__(self) -> None:
        options = SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        graph = build_graph().SerializeToString()
        self._session = InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def __call__(self, waveform: NDArray[np.float32]) -> NDArray[np.float32]:
        """waveform: (samples,) float32 at 16 kHz → (frames,) float32, the last frame filled up with silence."""
        hidden = cell = np.zeros((1, 1, STATE_SIZE), np.float32)
        probabilities = [np.zeros(0, np.float32)]
        for first in range(0, len(waveform), BLOCK_SAMPLES):
            inputs = {"samples": frames_from(waveform, first), "hidden": hidden, "cell": cell}
            outputs: Any = self._session.run(None, inputs)
            block, hidden, cell = outputs
            probabilities.append(block)
        return np.concatenate(probabilities)


def frames_from(waveform: NDArray[np.float32], first: int) -> NDArray[np.float32]:
    """Of the BLOCK_SAMPLES that begin at sample `first`: (frames, CONTEXT_SAMPLES + FRAME_SAMPLES)."""
    start = max(0, first - CONTEXT_SAMPLES)
    samples = waveform[start : first + BLOCK_SAMPLES]
    missing = CONTEXT_SAMPLES - (first - start)
    padded = np.pad(samples, (missing, -(missing + len(samples) - CONTEXT_SAMPLES) % FRAME_SAMPLES))
    return np.ascontiguousarray(sliding_window_view(padded, CONTEXT_SAMPLES + FRAME_SAMPLES)[::FRAME_SAMPLES])


def build_graph() -> onnx.ModelProto:
    """GRAPH with the weights that come with silero-vad."""
    source = onnx.load(str(files("silero_vad.data") / "silero_vad_16k_sequence.onnx")).graph
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in source.initializer}
    [lstm] = (node for node in source.node if node.op_type == "LSTM")
    constants = {
        "mirrored_samples": np.array([0, 0, 0, CONTEXT_SAMPLES]),
        "quarters_shape": np.array([0, -1, QUARTER_SAMPLES]),
        "quarters_of_spectrum": 2 * np.arange(SPECTRA)[:, None] + np.arange(4),
        "stretches_shape": np.array([0, SPECTRA, 4 * QUARTER_SAMPLES]),
        "fourier": weights["stft.forward_basis_buffer"][:, 0].T,
        "parts": np.array([BINS, BINS]),
        "batch_axis": np.array([1]),
        "lstm_input": weights[lstm.input[1]],
        "lstm_recurrent": weights[lstm.input[2]],
        "lstm_bias": weights[lstm.input[3]],
        "states_shape": np.array([-1, STATE_SIZE]),
        "output_weight": weights["output.weight"][0],
        "output_bias": weights["output.bias"],
        "list_shape": np.array([-1]),
    }
    positions = SPECTRA
    for layer, stride in enumerate(STRIDES):
        kernel, bias = weights[f"encoder.{layer}.weight"], weights[f"encoder.{layer}.bias"]
        constants[f"weight_{layer}"] = as_matrix(kernel, positions, stride)
        positions = -(-positions // stride)
        constants[f"bias_{layer}"] = np.tile(bias, positions)
    model = parser.parse_model(GRAPH)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in constants.items()
    )
    return model


def as_matrix(kernel: NDArray[np.float32], positions: int, stride: int) -> NDArray[np.float32]:
    """The convolution of `positions` values with a silent one on either side, as the matrix to multiply these with.

    kernel: (outputs, inputs, 3) → (positions * inputs, ⌈positions / stride⌉ * outputs), positions outermost in both.
    """
    outputs, inputs, taps = kernel.shape
    starts = range(-1, positions - 1, stride)
    matrix = np.zeros((positions, inputs, len(starts), outputs), np.float32)
    for place, start in enumerate(starts):
        for tap in range(taps):
            if 0 <= start + tap < positions:
                matrix[start + tap, :, place] = kernel[:, :, tap].T
    return matrix.reshape(positions * inputs, -1)
