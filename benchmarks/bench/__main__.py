"""The command: python -m benchmarks.bench --model base precision=int8 --speech DIR --output reports"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks import bench
from benchmarks.bench import plots
from benchmarks.bench.run import QUICK, QUICK_CLIPS, Bench, Plan
from benchmarks.load.command import clips_of, command_parser
from benchmarks.load.service import ServiceError
from benchmarks.load.workload import spread
from benchmarks.peers import PEERS
from serve_app.settings import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser("bench", bench.__doc__, model="base")
    parser.add_argument("--concurrency", type=int, nargs="+", help="requests at a time")
    parser.add_argument("--peers", nargs="*", choices=PEERS, metavar="PEER", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--passes", type=int, help="over the clips")
    parser.add_argument("--rounds", type=int, help="in which the service, its engine and faster-whisper take turns")
    parser.add_argument("--quick", action="store_true", help="a part of everything, in a few minutes")
    options = parser.parse_intermixed_args(arguments)
    clips = clips_of(parser, options)
    try:
        settings = Settings(model=options.model, **dict(pair.split("=", 1) for pair in options.settings))
    except ValueError as error:  # pydantic's among them
        parser.error(str(error))
    given = {name: getattr(options, name) for name in ("concurrency", "peers", "passes", "rounds")}
    plan = QUICK if options.quick else Plan()
    plan = replace(plan, **{name: value for name, value in given.items() if value is not None})
    if options.quick:
        clips = spread(clips, QUICK_CLIPS)
    run = Bench(settings, options.settings, clips, plan, options.output)
    try:
        run.run()
    except ServiceError as error:
        parser.exit(1, f"{error}\n")
    plots.draw(run.results, options.output / "bench")
    return int(any(measured.failures for measured in run.results.measurements()))


if __name__ == "__main__":
    sys.exit(main())
