"""Torch's datasets, as they are: those with numbered items, and those that are only streams."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from falaj.core.errors import Invalid
from falaj.feed.batch_plan import AnyOrderSource, EpochOrder
from falaj.feed.permutation import Ids

ENDLESS_SIZE = 1 << 60


class MapDatasetSource(AnyOrderSource):
    """A Map-style dataset: asked for many at once where it knows how (`__getitems__`)."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, ids: Ids) -> Any:
        """Collated as torch's own loader does."""
        numbers = ids.tolist()
        get_items = getattr(self.dataset, "__getitems__", None)
        return _collate_items(get_items(numbers) if get_items else [self.dataset[number] for number in numbers])


class StreamOrder:
    """The order of a stream: as it comes, with samples counted on over the epochs."""

    def __init__(self, begin: int) -> None:
        self._begin = begin

    def at(self, positions: Ids) -> Ids:
        """The same, counted from the first epoch."""
        return positions + self._begin


class StreamDatasetSource:
    """An Iterable-style dataset. Every reader runs the whole stream and takes its own from it; an earlier or later
    place is reached by reading up to it. Without a length it has one epoch that never ends: it is begun again."""

    transform: Callable[[Any], Any] | None = None
    sequential = True

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._size = len(dataset) if hasattr(dataset, "__len__") else 0
        self._next_position, self._epoch_start, self._epoch, self._items = 0, 0, -1, iter(())
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._size or (0 if hasattr(self.dataset, "__len__") else ENDLESS_SIZE)

    def take(self, ids: Ids) -> Any:
        """The items at these places, which grow."""
        with self._lock:
            return _collate_items([self._item_at(position) for position in ids.tolist()])

    def order(self, seed: int, epoch: int) -> EpochOrder | None:
        """As it comes; a seed cannot change it, but the dataset's own set_epoch can."""
        del seed
        return StreamOrder(epoch * self._size)

    def _item_at(self, position: int) -> Any:
        target_epoch = position // self._size if self._size else 0
        if position < self._next_position or target_epoch > self._epoch:
            self._begin_epoch(target_epoch)
        while True:
            item = next(self._items, self)
            if item is self:
                self._handle_stream_end()
                continue
            self._next_position += 1
            if self._next_position > position:
                return item

    def _begin_epoch(self, epoch: int) -> None:
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
        self._epoch, self._items = epoch, iter(self.dataset)
        self._next_position = epoch * self._size if self._size else self._next_position * bool(epoch)
        self._epoch_start = self._next_position

    def _handle_stream_end(self) -> None:
        item_count = self._next_position - self._epoch_start
        if self._size:
            raise Invalid(
                f"the stream ended after {item_count} samples and says it has {self._size}",
                "its __len__ is the number of its samples; or leave __len__ out",
            )
        if not item_count:
            raise Invalid("the dataset is empty: its __iter__ gives nothing", "look at what it reads")
        self._begin_epoch(self._epoch + 1)


def adopt_dataset(dataset: Any) -> MapDatasetSource | StreamDatasetSource | None:
    """A source over an object that is a dataset of torch, or behaves as one."""
    torch_data = sys.modules.get("torch.utils.data")
    is_stream = torch_data is not None and isinstance(dataset, torch_data.IterableDataset)
    if not is_stream and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return MapDatasetSource(dataset)
    if hasattr(dataset, "__next__"):
        raise Invalid("an iterator can be read once only", "give what makes it: an object with __iter__")
    return StreamDatasetSource(dataset) if hasattr(dataset, "__iter__") else None


def _collate_items(items: Any) -> Any:
    if not isinstance(items, list):
        return items
    if "torch" in sys.modules:
        from torch.utils.data import default_collate

        return default_collate(items)
    if isinstance(items[0], dict):
        return {name: np.asarray([item[name] for item in items]) for name in items[0]}
    return np.asarray(items)
