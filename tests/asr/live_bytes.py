"""How much memory tensors take while something runs."""

from __future__ import annotations

from typing import Any

from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from tests.asr.recorded_graphs import made_by


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How many bytes the tensors take, at most, that are made meanwhile and not yet gone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._live: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        storages = [made.untyped_storage() for made in made_by(func, result)]
        self._live = {key: size for key, size in self._live.items() if not key.expired()}  # type: ignore[no-untyped-call]
        self._live |= {StorageWeakRef(storage): storage.nbytes() for storage in storages}  # type: ignore[no-untyped-call]
        self.peak = max(self.peak, sum(self._live.values()))
        return result
