"""The Ray Serve deployments: `Transcriber` on CPUs calls `Recognizer` where the model runs."""
