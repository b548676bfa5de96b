"""Torch's datasets, as they are: those with numbered items, and those that are only streams."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from falaj.core.errors import Invalid
from falaj.feed.order import Ids
from falaj.feed.plan import Arranged, Unordered

ENDLESS = 1 << 60


class Items(Unordered):
    """A Map-style dataset: asked for many at once where it knows how (`__getitems__`)."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, ids: Ids) -> Any:
        """Collated as torch's own loader does."""
        numbers = ids.tolist()
        many = getattr(self.dataset, "__getitems__", None)
        return _collated(many(numbers) if many else [self.dataset[number] for number in numbers])


class Onward:
    """The order of a stream: as it comes, with samples counted on over the epochs."""

    def __init__(self, begin: int) -> None:
        self._begin = begin

    def at(self, positions: Ids) -> Ids:
        """The same, counted from the first epoch."""
        return positions + self._begin


class Flow:
    """An Iterable-style dataset. Every reader runs the whole stream and takes its own from it; an earlier or later
    place is reached by reading up to it. Without a length it has one epoch that never ends: it is begun again."""

    transform: Callable[[Any], Any] | None = None
    sequential = True

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._size = len(dataset) if hasattr(dataset, "__len__") else 0
        self._next, self._first, self._epoch, self._items = 0, 0, -1, iter(())
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._size or (0 if hasattr(self.dataset, "__len__") else ENDLESS)

    def take(self, ids: Ids) -> Any:
        """The items at these places, which grow."""
        with self._lock:
            return _collated([self._at(place) for place in ids.tolist()])

    def order(self, seed: int, epoch: int) -> Arranged | None:
        """As it comes; a seed cannot change it, but the dataset's own set_epoch can."""
        del seed
        return Onward(epoch * self._size)

    def _at(self, place: int) -> Any:
        wanted = place // self._size if self._size else 0
        if place < self._next or wanted > self._epoch:
            self._begin(wanted)
        while True:
            item = next(self._items, self)
            if item is self:
                self._ended()
                continue
            self._next += 1
            if self._next > place:
                return item

    def _begin(self, epoch: int) -> None:
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
        self._epoch, self._items = epoch, iter(self.dataset)
        self._next = epoch * self._size if self._size else self._next * bool(epoch)
        self._first = self._next

    def _ended(self) -> None:
        given = self._next - self._first
        if self._size:
            raise Invalid(
                f"the stream ended after {given} samples and says it has {self._size}",
                "its __len__ is the number of its samples; or leave __len__ out",
            )
        if not given:
            raise Invalid("the dataset is empty: its __iter__ gives nothing", "look at what it reads")
        self._begin(self._epoch + 1)


def adopted(what: Any) -> Items | Flow | None:
    """A source over an object that is a dataset of torch, or behaves as one."""
    torch_data = sys.modules.get("torch.utils.data")
    streams = torch_data is not None and isinstance(what, torch_data.IterableDataset)
    if not streams and hasattr(what, "__getitem__") and hasattr(what, "__len__"):
        return Items(what)
    if hasattr(what, "__next__"):
        raise Invalid("an iterator can be read once only", "give what makes it: an object with __iter__")
    return Flow(what) if hasattr(what, "__iter__") else None


def _collated(items: Any) -> Any:
    if not isinstance(items, list):
        return items
    if "torch" in sys.modules:
        from torch.utils.data import default_collate

        return default_collate(items)
    if isinstance(items[0], dict):
        return {name: np.asarray([item[name] for item in items]) for name in items[0]}
    return np.asarray(items)
