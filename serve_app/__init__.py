"""The Rayscribe application: `serve run serve_app:app`, or `serve run serve_app:build_app model=tiny.en`."""

from __future__ import annotations

from typing import Any

__all__ = ["app", "build_app"]


def __getattr__(name: str) -> Any:
    """`app` and `build_app`, made when asked for: the HTTP replica imports this package and needs no model library."""
    from serve_app import application

    if name == "build_app":
        return application.build_app
    if name == "app":
        return application.build_app(application.Settings())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
