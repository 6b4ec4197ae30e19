"""The parts of `benchmarks.bench`, `benchmarks.soak` and `benchmarks.fairness`.

    with running_service("tiny.en", ["threads=2"]) as service:
        window = service.closed_loop(clips, shuffled(len(clips), passes=2), concurrency=16)
        measurement = service.measurement("16 at a time", clips, window)

All times are of `time.monotonic`, which is one clock for all processes of a machine.
"""
