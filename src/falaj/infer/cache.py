"""Answers kept for requests that come again. The whole request is the key, so no two are taken for one another."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from falaj.core.errors import FalajError
from falaj.infer.queue import Done
from falaj.infer.statistics import Statistics
from falaj.oip.tensors import Answer, Ask, Made

MOST_BYTES = 256 << 20
Submit = Callable[[Ask, Done], Callable[[], None] | None]


class Cache:
    """Before a session's `submit`: the newest `most` answers, those asked for least recently go first."""

    def __init__(self, submit: Submit, most: int, statistics: Statistics) -> None:
        self._submit, self._most, self._statistics = submit, most, statistics
        self._kept: OrderedDict[Any, tuple[Answer, int]] = OrderedDict()
        self._bytes = 0

    def submit(self, ask: Ask, done: Done) -> Callable[[], None] | None:
        """The answer that was given before, or a new one."""
        key = _key(ask)
        found = self._kept.get(key)
        if found is None:
            self._statistics.cache_misses += 1
            return self._submit(ask, lambda got: self._keep(key, got, done))
        self._statistics.cache_hits += 1
        self._statistics.succeeded += 1
        self._kept.move_to_end(key)
        kept = found[0]
        done(Answer(kept.model, kept.version, ask.id, kept.outputs))
        return None

    def _keep(self, key: Any, got: Answer | FalajError, done: Done) -> None:
        if isinstance(got, Answer):
            made = [Made(one.name, one.datatype, one.shape, _own(one.data)) for one in got.outputs]
            size = sum(_size(one.data) for one in made) + sum(_size(one) for _, _, _, one in key[0])
            self._bytes += size - (self._kept[key][1] if key in self._kept else 0)
            self._kept[key] = (Answer(got.model, got.version, "", made), size)
            while len(self._kept) > self._most or self._bytes > MOST_BYTES:
                self._bytes -= self._kept.popitem(last=False)[1][1]
        done(got)


def _key(ask: Ask) -> Any:
    inputs = tuple(
        (one.name, one.datatype, one.shape, tuple(one.data) if isinstance(one.data, list) else bytes(one.data))
        for one in ask.inputs
    )
    return inputs, tuple(ask.outputs), tuple(sorted((name, repr(value)) for name, value in ask.parameters.items()))


def _own(data: Any) -> Any:
    """Not a view of a whole batch."""
    return data.copy()


def _size(data: Any) -> int:
    size: int = data.nbytes if hasattr(data, "nbytes") else sum(map(len, data)) if isinstance(data, list) else len(data)
    return size
