"""What Ray's environment should say where its processes share the processors of the model. Imports no Ray."""

from __future__ import annotations

from collections.abc import MutableMapping

RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # docs.ray.io/en/latest/serve/advanced-guides/performance.html: one loop for all, where no handler blocks it.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    # Features, and recordings but long ones, go from replica to replica, rather than by way of the object store.
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    # The controller looks after a handful of replicas; ten times a second is for hundreds.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    # Free memory that each thread has for itself is lost to all others, and threads are many.
    "MALLOC_ARENA_MAX": "2",
    # They are exported every ten seconds.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "1000",
}
"""What Ray's processes do for a request, and all the time besides, makes every request slower."""


def configure_ray(environment: MutableMapping[str, str]) -> None:
    """Before Ray is imported: it reads its environment then, and the handles that this process binds carry on what it
    read. What the environment says already holds."""
    for name, value in RAY_ENVIRONMENT.items():
        environment.setdefault(name, value)
