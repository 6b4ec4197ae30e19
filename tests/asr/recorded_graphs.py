"""CUDA graphs where there is no GPU: operations are recorded with their memory, and a replay runs them alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asr.sessions.cuda_graphs import Step


@dataclass(frozen=True)
class Operation:
    """One kernel, with the tensors that it reads and those that it makes, views excepted."""

    function: Any
    call: Callable[[], Any]
    made: Sequence[Tensor]


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operation that runs meanwhile."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = partial(func, *args, **(kwargs or {}))
        result = call()
        self.operations.append(Operation(func, call, made_by(func, result)))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        """The same operations on the same memory, whatever Python would do by now."""
        for operation in self.operations:
            result = operation.call()
            for made, fresh in zip(operation.made, made_by(operation.function, result), strict=True):
                made.copy_(fresh)


def made_by(func: Any, result: Any) -> list[Tensor]:
    """The tensors among an operation's results that its signature does not call views of its arguments."""
    is_view = any(returned.alias_info is not None for returned in func._schema.returns)
    return [] if is_view else [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


class Recorder:
    """A capture that counts. As in a CUDA graph, nothing that is captured has a value before the first replay."""

    def __init__(self) -> None:
        self.captures = 0
        self.replays = 0

    def __call__(self, step: Step) -> Step:
        self.captures += 1
        with Tape() as tape:
            outputs = step()
        for operation in tape.operations:
            for made in operation.made:
                made.fill_(torch.nan if made.is_floating_point() else 0)

        def replay() -> dict[str, Tensor]:
            self.replays += 1
            tape.replay()
            return outputs

        return replay


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How many tensors of each shape are copied into others."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.shapes.append(tuple(args[1].shape))
        return func(*args, **(kwargs or {}))

    def of(self, value: Tensor) -> int:
        return self.shapes.count(tuple(value.shape))
