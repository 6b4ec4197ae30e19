"""The parts of a run, one after the other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from asr.devices import Device
from benchmarks.bench.report import IN_TURNS, SECTIONS, conclusions, report
from benchmarks.load.alone import OwnProcess, own_process
from benchmarks.load.command import write_report
from benchmarks.load.engine import Loading, run_engine
from benchmarks.load.floor import floor_ms, in_words, measured_cpu
from benchmarks.load.measurement import Measurement
from benchmarks.load.peer import CLIP_BY_CLIP, run_peer
from benchmarks.load.results import REFERENCE, Results, Setup
from benchmarks.load.service import Service, running_service
from benchmarks.load.tables import table_head, table_row
from benchmarks.load.workload import poisson_arrivals, shuffled, spread
from benchmarks.peers import PEER_TITLES, PEERS, UnavailableError
from benchmarks.speech_set import Clip
from deployments.transcriber import PREPARING_THREADS
from serve_app.application import recognizer_config
from serve_app.settings import Settings

WARM_UP = 32
"""Requests, as many at a time as are compared: OpenVINO makes its kernels for the sizes that it meets."""
PEER_IN_TURNS = "faster-whisper"
SLOW_PEERS = {"whisper.cpp": 24, "transformers": 32, "transformers-alone": 24}
"""Peers that take seconds for a clip, and how many clips they are given at most, of all lengths alike."""


@dataclass(frozen=True)
class Plan:
    """concurrency: requests at a time; single: the same in batches of one; sizes: rows of the engine's batches; shares:
    of the capacity, with so many arrivals each; passes: over the clips, half as many with the engine; rounds: in which
    the service, its engine and faster-whisper are measured in turns."""

    concurrency: Sequence[int] = (1, 4, REFERENCE, 32)
    single: Sequence[int] = (1, REFERENCE)
    sizes: Sequence[int] = (1, 2, 4, 8, 16, 32)
    shares: Sequence[float] = (0.5, 0.8, 1.0)
    arrivals: int = 150
    passes: int = 2
    peers: Sequence[str] = tuple(name for name in PEERS if name != "transformers-alone")
    rounds: int = 3


QUICK = Plan((1, REFERENCE), (REFERENCE,), (1, REFERENCE), (0.8,), 30, 2, ("faster-whisper", "ctranslate2"), 1)
QUICK_CLIPS = 16


class Bench:
    """Runs the parts of a plan; what each finds is printed, kept and written at once."""

    def __init__(
        self, settings: Settings, pairs: Sequence[str], clips: Sequence[Clip], plan: Plan, output: Path
    ) -> None:
        """pairs: the settings of the service, as NAME=VALUE; output: folder for what is found."""
        self._settings = settings
        self._pairs = pairs
        self._clips = clips
        self._plan = plan
        self._output = output
        self._title = ""
        self.results = Results(Setup.here(settings.model, pairs, clips), recognizer_config(settings).limits.rows)

    def run(self) -> None:
        """
        Raises:
            ServiceError: the service does not start.
        """
        print(self.results.setup)
        self._serve()
        if self._plan.single:
            self._serve_in_batches_of_one()
        if self._plan.sizes:
            self._run_engine(sorted({*self._plan.sizes, self.results.limit}), self.results)
        for name in self._plan.peers:
            self._run_peer(name, self.results)
        for _ in range(self._plan.rounds):
            self._take_turns()
        print("\n\n".join(["", *conclusions(self.results)]))

    def _serve(self) -> None:
        order = shuffled(len(self._clips), self._plan.passes)
        with running_service(self._settings.model, self._pairs) as service:
            self._closed_loops(service, "closed", "Rayscribe", self._plan.concurrency, self.results)
            for share in self._plan.shares if self.results.capacity else ():
                rate = share * self.results.capacity
                window = service.open_loop(self._clips, order, poisson_arrivals(rate, self._plan.arrivals))
                name = f"Rayscribe, {100 * share:.0f} %, {rate:.2f}/s"
                self._keep("arriving", share, service.measurement(name, self._clips, window), self.results)

    def _serve_in_batches_of_one(self) -> None:
        with running_service(self._settings.model, [*self._pairs, "max_batch_size=1"]) as service:
            self._closed_loops(service, "single", "Rayscribe, batches of one", self._plan.single, self.results)

    def _take_turns(self) -> None:
        """One round."""
        turns = Results(self.results.setup, self.results.limit)
        self.results.rounds.append(turns)
        with running_service(self._settings.model, self._pairs) as service:
            self._closed_loops(service, "closed", "Rayscribe", (1, REFERENCE), turns)
        if self._plan.sizes:
            self._run_engine([turns.limit], turns)
        if PEER_IN_TURNS in self._plan.peers:
            self._run_peer(PEER_IN_TURNS, turns)

    def _closed_loops(
        self, service: Service, section: str, title: str, concurrencies: Sequence[int], results: Results
    ) -> None:
        order = shuffled(len(self._clips), self._plan.passes)
        service.closed_loop(self._clips, order[:WARM_UP], REFERENCE)
        for concurrency in concurrencies:
            window = service.closed_loop(self._clips, order, concurrency)
            name = f"{title}, {concurrency} at a time"
            self._keep(section, concurrency, service.measurement(name, self._clips, window), results)

    def _run_engine(self, sizes: Sequence[int], results: Results) -> None:
        results.processor = in_words(self._cpu)
        with own_process() as process:
            self._engine_measurement(process, results.limit)  # as the service warms up
            for rows in sizes:
                self._keep("engine", rows, self._engine_measurement(process, rows), results)
            measured = self._engine_measurement(process, results.limit, preparing_threads=PREPARING_THREADS)
            self._keep("preparing", results.limit, measured, results)

    @cached_property
    def _cpu(self) -> Device:
        return measured_cpu()

    def _engine_measurement(self, process: OwnProcess, rows: int, preparing_threads: int = 0) -> Measurement:
        config = recognizer_config(self._settings.model_copy(update={"max_batch_size": rows}))
        order, concurrency = shuffled(len(self._clips), max(1, self._plan.passes // 2)), max(rows, REFERENCE)
        loading = Loading(config.model, config.precision, config.backend, config.threads, config.cache_dir)
        run = process.run(run_engine, loading, config.limits, self._clips, order, concurrency, preparing_threads)
        name = f"engine, {rows} at most, {concurrency} at a time" + ", with preparation" * (preparing_threads > 0)
        usage = process.meter.usage(run.window.start_s, run.window.end_s)
        measured = Measurement.of(name, self._clips, run.window, usage)
        return replace(
            measured, floor_ms=floor_ms(run, self._cpu, config.backend, config.precision, measured.mean_rows)
        )

    def _run_peer(self, name: str, results: Results) -> None:
        clips = spread(self._clips, SLOW_PEERS.get(name, len(self._clips)))
        clips = [clips[place] for place in shuffled(len(clips))]
        title = PEER_TITLES[name]
        if len(clips) < len(self._clips):
            title += f", {len(clips)} of the clips"
            results.partial.append(name)
        try:
            with own_process() as process:
                window = process.run(run_peer, name, self._settings.model, clips, self._settings.cache_dir)
                usage = process.meter.usage(window.start_s, window.end_s)
        except UnavailableError as error:
            results.left_out.append(f"{title}: {error}")
            return
        measured = Measurement.of(title, clips, window, usage, have_latencies=name in CLIP_BY_CLIP)
        self._keep("peers", name, measured, results)

    def _keep(self, section: str, key: Hashable, measured: Measurement, results: Results) -> None:
        found: dict[Hashable, Measurement] = getattr(results, section)
        title = IN_TURNS if results is not self.results else SECTIONS[section]
        if title != self._title:
            print(f"\n{title}\n\n{table_head()}")
            self._title = title
        found[key] = measured
        print(table_row(measured), flush=True)
        write_report(self._output / "bench", report(self.results), asdict(self.results))
