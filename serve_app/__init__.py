"""The Rayscribe application: `serve run serve_app:app`, or `serve run serve_app:build_app model=tiny.en`."""

from __future__ import annotations

from typing import Any

__all__ = ["app", "build_app"]


def __getattr__(name: str) -> Any:
    """`app` and `build_app`, made when asked for: the HTTP replica imports this package and needs no model library."""
    if name in __all__:
        from serve_app.application import build_app
        from serve_app.settings import Settings

        return build_app if name == "build_app" else build_app(Settings())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
