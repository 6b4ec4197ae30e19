"""The parts of `benchmarks.gpu_check`."""
