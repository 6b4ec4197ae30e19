"""Errors cross process borders: the GPU replica raises, the ingress explains."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Sequence

import pytest

import asr.errors
from asr.errors import AsrError

CLASSES = [
    kind for _, kind in inspect.getmembers(asr.errors, inspect.isclass) if kind.__module__ == asr.errors.__name__
]


EXAMPLES: dict[object, object] = {int: 99, Sequence[str]: ("first line", "second line")}


def example(kind: type[AsrError]) -> AsrError:
    """One of this class, with a value of its own for each argument."""
    if kind.__init__ is AsrError.__init__:
        return kind("some message")
    parameters = inspect.signature(kind, eval_str=True).parameters.values()
    return kind(*(EXAMPLES.get(parameter.annotation, f"some {parameter.name}") for parameter in parameters))


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_survives_pickling(kind: type[AsrError]) -> None:
    error = example(kind)
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is kind
    assert str(copy) == str(error)
    assert copy.args == error.args


@pytest.mark.parametrize("kind", CLASSES)
def test_the_message_has_every_argument(kind: type[AsrError]) -> None:
    error = example(kind)

    arguments = [part for argument in error.args for part in (argument if isinstance(argument, tuple) else [argument])]
    assert all(str(argument) in str(error) for argument in arguments)
    assert arguments


def test_all_hang_on_one_tree() -> None:
    assert CLASSES
    assert all(issubclass(kind, AsrError) for kind in CLASSES)


def test_the_tree_drawn_is_the_tree() -> None:
    drawn = [line.split()[-1] if "──" in line else "" for line in _names_only(asr.errors.__doc__ or "")]

    assert sorted(filter(None, drawn)) == sorted(kind.__name__ for kind in CLASSES if kind is not AsrError)


def _names_only(text: str) -> list[str]:
    """The lines of the drawing up to the name in each."""
    lines = []
    for line in text.splitlines():
        branch, dashes, rest = line.partition("──")
        lines.append(branch + dashes + " " + rest.split()[0] if dashes else "")
    return lines
