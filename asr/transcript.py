"""What is asked for and what comes back, as plain data that every process can read without loading a model library."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class DecodingOptions:
    """What one utterance is to be decoded with.

    language: ISO 639-1 code, or None to detect it; task: "transcribe", or "translate" into English;
    prompt: text that is taken to have been said before; temperature: 0 takes the likeliest token, above that it is
    sampled.
    """

    language: str | None = None
    task: str = "transcribe"
    prompt: str = ""
    temperature: float = 0.0


@dataclass(frozen=True)
class Timing:
    """Where the time of one recognition went, all its attempts together.

    queue_s: waiting for the model; encode_s: in the encoder and reading the prompt, for the whole batch that it was
    encoded in; decode_s: from there to its last token; steps: tokens that it was advanced by; rows: how many were
    decoded at a time, itself included, on average over its steps.
    """

    queue_s: float = 0.0
    encode_s: float = 0.0
    decode_s: float = 0.0
    steps: int = 0
    rows: float = 0.0

    @property
    def total_s(self) -> float:
        return self.queue_s + self.encode_s + self.decode_s


@dataclass(frozen=True)
class Recognition:
    """What the model heard in one utterance.

    text: as the model spells it, with its leading blank; tokens: of the text; language: given or detected;
    avg_logprob: mean natural log-probability of the tokens and the end; no_speech_prob: of the model hearing no speech;
    compression_ratio: bytes of the text over its zlib-compressed bytes, high when the model repeats itself;
    temperature: that it was decoded with; complete: whether the model ended by itself, rather than at the token bound;
    timing: how long it took, which does not make one recognition differ from another.
    """

    text: str
    tokens: tuple[int, ...]
    language: str
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    temperature: float
    complete: bool
    timing: Timing = field(default_factory=Timing, compare=False)


@dataclass(frozen=True)
class TranscriptSegment:
    """What was said between start_s and end_s of the recording."""

    start_s: float
    end_s: float
    recognition: Recognition


@dataclass(frozen=True)
class TranscriptTiming:
    """Where the time of one transcription went.

    prepare_s: from the bytes to what the model hears, with the wait for it to begin; recognition: of the segment that
    took longest; assemble_s: from what was heard in the segments to the transcript.
    """

    prepare_s: float = 0.0
    recognition: Timing = field(default_factory=Timing)
    assemble_s: float = 0.0


@dataclass(frozen=True)
class Transcript:
    """What was said in a recording.

    language: given or detected, None where nothing was said and none was given; timing: how long it took, which does
    not make one transcript differ from another.
    """

    text: str
    language: str | None
    duration_s: float
    segments: tuple[TranscriptSegment, ...]
    timing: TranscriptTiming = field(default_factory=TranscriptTiming, compare=False)
