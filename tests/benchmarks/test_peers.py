"""The systems that Rayscribe is measured against hear the words, and are given them as they are said to be."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from asr.checkpoint import Checkpoint
from asr.features import SAMPLE_RATE, WINDOW_SAMPLES
from asr.model import Dims
from asr.scheduler import BatchLimits, Job, Scheduler
from benchmarks.peers import PEER_TITLES, PEERS, UnavailableError, ggml
from benchmarks.peers.ctranslate2 import Margin, Recognizer, Row
from benchmarks.peers.faster_whisper import transcribe_together
from benchmarks.peers.windows import Cutter, Window, by_language, in_batches, joined, similar_batches
from benchmarks.speech_set import Clip
from tests.asr.fake_model import Clock, FakeModel, utterance
from tests.asr.reference import LoadedModel, random_weights
from tests.audio_files import wav

CUTS = [  # of the speech: name, start and end in seconds
    ("wisdom", 1.0, 6.6),
    ("season", 13.2, 17.1),
]
WORDS = [
    "it was the best of times it was the worst of times it was the age of wisdom",
    "it was the season of light it was the season of darkness",
]
DIMS = {
    80: Dims(80, 20, 16, 2, 2, 51_864, 12, 16, 2, 2),
    128: Dims(128, 20, 16, 2, 4, 51_866, 12, 16, 2, 1),
}


def clip(path: Path, language: str | None = "en") -> Clip:
    return Clip(
        id=path.stem,
        path=path,
        text="",
        alt_text=None,
        language=language,
        duration_s=1.0,
        kind="read",
        confidence="high",
    )


def window(samples: int, language: str | None = "en") -> Window:
    return Window(0, language, np.full(samples, samples, np.float32))


# --- what they hear


@pytest.fixture(scope="module")
def cuts(speech: NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> list[Clip]:
    """The longer one first, so that batches by length turn them around."""
    folder = tmp_path_factory.mktemp("cuts")
    for name, start_s, end_s in CUTS:
        (folder / f"{name}.wav").write_bytes(wav(speech[int(start_s * SAMPLE_RATE) : int(end_s * SAMPLE_RATE)]))
    return [clip(folder / f"{name}.wav") for name, _, _ in CUTS]


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_hears_the_words(
    name: str, cuts: Sequence[Clip], tiny_en: LoadedModel, artefact_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("ctranslate2", "faster_whisper", "huggingface", "whisper_cpp"):  # see tests/conftest.py
        monkeypatch.setattr(f"benchmarks.peers.{module}.usable_cpus", lambda: 1)
    with PEERS[name]("tiny.en", artefact_cache) as transcribe:
        texts = transcribe(cuts)

    assert [re.findall(r"[a-z]+", str(text).lower()) for text in texts] == [words.split() for words in WORDS]


def test_every_peer_has_a_title() -> None:
    assert PEER_TITLES.keys() == PEERS.keys()
    assert len(set(PEER_TITLES.values())) == len(PEERS)


# --- what they lack


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("faster-whisper", "faster_whisper", "faster-whisper"),
        ("faster-whisper-batched", "faster_whisper", "faster-whisper"),
        ("faster-whisper-joined", "faster_whisper", "faster-whisper"),
        ("ctranslate2", "ctranslate2", "ctranslate2"),
        ("whisper.cpp", "pywhispercpp.model", "pywhispercpp"),
        ("transformers", "transformers", "transformers"),
    ],
)
def test_a_peer_that_is_not_installed_says_so(
    name: str, module: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)

    message = rf"^{package} cannot be imported .*rayscribe\[bench\]"
    with pytest.raises(UnavailableError, match=message), PEERS[name]("tiny.en", tmp_path):
        pass


@pytest.mark.parametrize("name", ["faster-whisper", "ctranslate2"])
def test_a_model_in_another_format_is_named(name: str, tmp_path: Path) -> None:

    message = "small is neither a CTranslate2 directory"
    with pytest.raises(UnavailableError, match=message), PEERS[name](str(tmp_path / "small"), tmp_path):
        pass


def test_the_threads_of_pytorch_are_left_as_they_were(tiny_en: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.peers.huggingface.usable_cpus", lambda: 2)
    before = torch.get_num_threads()

    with PEERS["transformers"]("tiny.en", None):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before


# --- batches


def test_batches_of_similar_length() -> None:
    """The shortest first."""
    limits = BatchLimits(rows=4, frames=2402)

    assert similar_batches([], limits) == []
    assert similar_batches([600, 600, 1201, 700, 1200], limits) == [[0, 1, 3], [4, 2]]  # four of 1200 are too many
    assert similar_batches([600, 600, 600, 600, 600], limits) == [[0, 1, 2, 3], [4]]
    assert similar_batches([1200, 800], limits) == [[1, 0]]
    assert similar_batches([1200, 799], limits) == [[1], [0]]
    assert similar_batches([3000, 600, 3000], limits) == [[1], [0], [2]]
    assert similar_batches([600, 700], BatchLimits(rows=1)) == [[0], [1]]


def test_batches_are_those_of_the_scheduler() -> None:
    limits = BatchLimits(rows=5, frames=6_000)
    clock = Clock()
    model = FakeModel(clock)
    scheduler = Scheduler(model, limits, clock)
    windows = []
    for place, count in enumerate(np.random.default_rng(0).integers(20, 3000, 60)):
        job = Job(utterance(f"{place}", count))
        windows.append(job.utterance.window.frames)
        scheduler.add(job)
    while not scheduler.is_idle:
        scheduler.turn()

    batches = similar_batches(windows, limits)
    assert [[int(name) for name in batch] for batch in model.batches] == batches
    assert max(map(len, batches)) == 5 > min(map(len, batches))


def test_batches_by_language_begin_with_the_shortest() -> None:
    windows = [window(5), window(3, "zh"), window(2), window(4, None), window(1), window(9, None)]

    assert by_language(windows) == [[4, 2, 0], [1], [3, 5]]
    assert by_language(windows, rows=2) == [[4, 2], [0], [1], [3, 5]]
    assert by_language([]) == []


def test_texts_come_back_in_the_order_of_the_rows() -> None:
    recognized: list[Sequence[str]] = []

    def recognize(rows: Sequence[str]) -> list[str]:
        recognized.append(rows)
        return [row.upper() for row in rows]

    assert in_batches(["a", "b", "c"], [[2, 0], [1]], recognize) == ["A", "B", "C"]
    assert recognized == [["c", "a"], ["b"]]


def test_parts_of_a_clip_are_joined_as_its_language_is_written() -> None:
    clips = [clip(Path("a")), clip(Path("b"), "zh"), clip(Path("c"), None), clip(Path("d"))]
    parts = [(0, " one"), (0, " "), (0, "two "), (1, "你"), (1, "好"), (2, "Uh"), (2, "oh")]

    assert joined(clips, *zip(*parts, strict=True)) == ["one two", "你好", "Uh oh", ""]


def test_only_clips_longer_than_a_window_are_cut(speech: NDArray[np.float32], tmp_path: Path) -> None:
    for name, waveform in {"short": speech[:WINDOW_SAMPLES], "empty": speech[:0], "long": speech}.items():
        (tmp_path / f"{name}.wav").write_bytes(wav(waveform))
    short, *parts = Cutter()([clip(tmp_path / f"{name}.wav") for name in ("short", "empty", "long")])

    assert (short.clip, len(short.waveform)) == (0, WINDOW_SAMPLES)
    assert [part.clip for part in parts] == [2, 2]
    assert all(0 < len(part.waveform) <= WINDOW_SAMPLES for part in parts)


@pytest.mark.parametrize(
    ("margin", "speech_frames", "frames"),
    [
        (Margin(), 100, 600),
        (Margin(), 401, 602),
        (Margin(), 2900, 3000),
        (Margin(seconds=0.5, shortest_s=0), 101, 152),
        (Margin(seconds=30), 1, 3000),
    ],
)
def test_frames_of_a_margin(margin: Margin, speech_frames: int, frames: int) -> None:
    assert margin.frames(speech_frames) == frames


def test_ctranslate2_is_given_padded_features_and_a_prompt_for_each_row(base: LoadedModel) -> None:
    given: dict[str, Any] = {}

    def generate(encoded: str, prompts: list[list[int]], **options: Any) -> list[SimpleNamespace]:
        given.update(encoded=encoded, prompts=prompts, options=options)
        return [SimpleNamespace(sequences_ids=[tokenizer.encode(text)]) for text in (" one", " zwei")]

    def encode(features: NDArray[np.float32]) -> str:
        given["features"] = features
        return "encoded"

    tokenizer = base.checkpoint.tokenizer
    whisper = SimpleNamespace(
        encode=encode, generate=generate, detect_language=lambda encoded: [[("<|fr|>", 0.9)], [("<|de|>", 0.6)]]
    )
    storage = SimpleNamespace(from_array=lambda array: array)
    recognizer = Recognizer(whisper, storage, tokenizer, segmenter=None, margin=Margin(seconds=1, shortest_s=0))  # type: ignore[arg-type]
    rows = [Row(0, "en", np.full((80, 101), 1.0, np.float32)), Row(1, None, np.full((80, 50), 0.5, np.float32))]

    assert recognizer.texts(rows) == [" one", " zwei"]
    assert given["features"].shape == (2, 80, 202)
    assert given["features"][:, 0, [49, 50, 100, 101, 201]].tolist() == [
        [1, 1, 1, -1, -1],
        [0.5, -1.5, -1.5, -1.5, -1.5],
    ]
    assert given["encoded"] == "encoded"
    assert given["prompts"] == [
        [tokenizer.sot, tokenizer.language_token(language), tokenizer.transcribe, tokenizer.no_timestamps]
        for language in ("en", "de")
    ]
    assert given["options"] == {"beam_size": 1}


@pytest.mark.parametrize("language", ["de", None])
def test_joined_clips_are_given_and_found_to_the_sample(language: str | None) -> None:
    given: dict[str, Any] = {}

    def transcribe(recording: NDArray[np.float32], **options: Any) -> tuple[list[SimpleNamespace], None]:
        """As the pipeline: a segment or more for each clip, whose `seek` is its start in frames, cut off."""
        given.update(options)
        spans = [(int(span["start"] * 16_000), int(span["end"] * 16_000)) for span in options["clip_timestamps"]]
        heard = [(int(start / 16_000 * 100), set(recording[start:end]), end - start) for start, end in spans]
        return [
            SimpleNamespace(seek=seek, text=f" {said}/{length}") for seek, said, length in heard for _ in "ab"
        ], None

    lengths = [16_001, 5_333, 7_777, 48_000]
    windows = [window(samples, language) for samples in lengths]
    texts = transcribe_together(SimpleNamespace(transcribe=transcribe), windows)

    assert texts == [2 * f" { {np.float32(length)} }/{length}" for length in lengths]
    assert (given["language"], given["multilingual"]) == (language, language is None)
    assert (given["batch_size"], given["beam_size"]) == (16, 1)


# --- whisper.cpp's format


@dataclasses.dataclass(frozen=True)
class Ggml:
    """What is in a file. sizes: the eleven numbers after the magic; parameters: by name, with their type."""

    sizes: tuple[int, ...]
    mel_filters: NDArray[np.float32]
    vocabulary: list[bytes]
    parameters: dict[str, tuple[int, NDArray[np.generic]]]


def read_ggml(file: BinaryIO) -> Ggml:
    def numbers(count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}i", file.read(4 * count))

    assert file.read(4) == b"lmgg"
    sizes = numbers(11)
    rows, columns = numbers(2)
    mel_filters = np.frombuffer(file.read(4 * rows * columns), "<f4").reshape(rows, columns)
    vocabulary = [file.read(*numbers(1)) for _ in range(*numbers(1))]
    parameters = {}
    while head := file.read(12):
        rank, length, kind = struct.unpack("<3i", head)
        shape = numbers(rank)[::-1]
        name = file.read(length).decode()
        dtype = np.dtype(["<f4", "<f2"][kind])
        data = file.read(dtype.itemsize * int(np.prod(shape)))
        parameters[name] = (kind, np.frombuffer(data, dtype).reshape(shape))
    return Ggml(sizes, mel_filters, vocabulary, parameters)


def checkpoint(dims: Dims, tmp_path: Path, content: bytes = b"weights") -> Checkpoint:
    (tmp_path / "weights").write_bytes(content)
    return Checkpoint("small", [tmp_path / "weights"], dims, [b"a", b"", b" caf\xc3"], lambda: random_weights(dims))


@pytest.mark.parametrize("n_mels", DIMS)
def test_ggml_round_trip(n_mels: int, tmp_path: Path) -> None:
    dims = DIMS[n_mels]
    with ggml.ensure_ggml(checkpoint(dims, tmp_path), tmp_path).open("rb") as file:
        read = read_ggml(file)

    assert read.sizes == (dims.n_vocab, 20, 16, 2, dims.n_audio_layer, 12, 16, 2, dims.n_text_layer, n_mels, 1)
    assert read.vocabulary == [b"a", b"", b" caf\xc3"]
    weights = random_weights(dims)
    assert list(read.parameters) == list(weights)
    for name, value in weights.items():
        kind, array = read.parameters[name]
        is_half = value.ndim > 1 and not name.endswith("positional_embedding")
        assert (kind, array.dtype.name) == ((1, "float16") if is_half else (0, "float32")), name
        assert array.shape == ((16, 1) if re.search(r"conv\d\.bias", name) else value.shape), name
        np.testing.assert_array_equal(array.reshape(value.shape), value.half() if is_half else value, name)


@pytest.mark.parametrize("n_mels", DIMS)
def test_ggml_has_the_mel_filters_that_openai_publishes(n_mels: int, tmp_path: Path) -> None:
    spec = importlib.util.find_spec("whisper")
    assert spec is not None
    assert spec.origin is not None
    with np.load(Path(spec.origin).parent / "assets" / "mel_filters.npz") as published:
        expected = published[f"mel_{n_mels}"]
    with ggml.ensure_ggml(checkpoint(DIMS[n_mels], tmp_path), tmp_path).open("rb") as file:
        np.testing.assert_allclose(read_ggml(file).mel_filters, expected, atol=1e-6)


def test_ggml_is_written_once_for_the_same_weights(tmp_path: Path) -> None:
    dims = DIMS[80]
    path = ggml.ensure_ggml(checkpoint(dims, tmp_path), tmp_path)
    written = path.stat().st_mtime_ns

    assert ggml.ensure_ggml(checkpoint(dims, tmp_path), tmp_path) == path
    assert path.stat().st_mtime_ns == written
    assert ggml.ensure_ggml(checkpoint(dims, tmp_path, b"others"), tmp_path) != path
    assert len(list(path.parent.iterdir())) == 2  # and nothing that was unfinished
