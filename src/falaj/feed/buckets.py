"""Samples of like length in one micro-batch, as many as a budget of tokens lets in.

A bucket is what a plan counts as a sample: `Feed(Buckets(…), batch=8, micro=1)` steps over eight buckets. They hold
different numbers of samples, so losses must be summed and counted, which is how training here takes them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.feed.batch_plan import EpochOrder
from falaj.feed.permutation import Ids, ShuffleOrder, mix_seeds


class Buckets:
    """A source over another: micro-batches of at most `tokens`, padding counted, with `lengths` as a column.

    Lengths are rounded up to a multiple of `round_to`. Within one rounded length, who meets whom is new in every epoch;
    where the cuts are is not, so there are as many buckets in each."""

    transform: Callable[[Any], Any] | None = None

    def __init__(self, source: Any, lengths: Any, tokens: int, *, round_to: int = 16, pad: float = 0) -> None:
        self.source, self.pad = source, pad
        self.lengths: NDArray[np.int64] = np.asarray(lengths, np.int64)
        if len(self.lengths) != len(source):
            raise Invalid(f"there are {len(self.lengths)} lengths for {len(source)} samples", "give one for each")
        self._rounded = -(-self.lengths // round_to) * round_to
        longest = int(self._rounded.max(initial=0))
        if longest > tokens:
            raise Invalid(
                f"the longest sample takes {longest} tokens, a bucket {tokens}", "cut it, or allow more tokens"
            )
        self._bucket_starts = _find_cuts(np.sort(self._rounded), tokens)
        self._seed, self._ranked_by_epoch = 0, dict[int, Ids]()

    def __len__(self) -> int:
        return len(self._bucket_starts) - 1

    def order(self, seed: int, epoch: int) -> EpochOrder | None:
        """Buckets shuffled; those of an epoch are numbered after those of the one before."""
        self._seed = seed
        return _OffsetOrder(ShuffleOrder(len(self), mix_seeds(seed, epoch)), epoch * len(self))

    def members(self, bucket: int) -> Ids:
        """The samples of a bucket."""
        epoch, bucket_number = divmod(int(bucket), len(self))
        ranked = self._ranked_by_epoch.get(epoch)
        if ranked is None:
            shuffled = ShuffleOrder(len(self.lengths), mix_seeds(self._seed, epoch, 1)).at(np.arange(len(self.lengths)))
            ranked = shuffled[np.argsort(self._rounded[shuffled], kind="stable")]
            self._ranked_by_epoch = {
                **{
                    cached_epoch: ids
                    for cached_epoch, ids in self._ranked_by_epoch.items()
                    if cached_epoch == epoch - 1
                },
                epoch: ranked,
            }
        return ranked[self._bucket_starts[bucket_number] : self._bucket_starts[bucket_number + 1]]

    def take(self, ids: Ids) -> dict[str, Any]:
        """The samples of these buckets, padded to the longest; texts and bytes are left as they are."""
        samples = np.concatenate([self.members(bucket) for bucket in ids.tolist()])
        batch: Mapping[str, Any] = self.source.take(samples)
        padded = {name: self._pad_column(column) for name, column in batch.items()}
        return {**padded, "lengths": self.lengths[samples]}

    def _pad_column(self, column: Any) -> Any:
        if not isinstance(column, list) or isinstance(column[0], str | bytes):
            return column
        arrays = [np.asarray(array) for array in column]
        width = max(len(array) for array in arrays)
        padded = np.full((len(arrays), width, *arrays[0].shape[1:]), self.pad, arrays[0].dtype)
        for row, array in zip(padded, arrays, strict=True):
            row[: len(array)] = array
        return padded


class _OffsetOrder:
    def __init__(self, order: ShuffleOrder, begin: int) -> None:
        self._order, self._begin = order, begin

    def at(self, positions: Ids) -> Ids:
        return self._order.at(positions) + self._begin


def _find_cuts(rounded: NDArray[np.int64], tokens: int) -> list[int]:
    """Where buckets end in samples sorted by length: the last is the longest, and all are padded to it."""
    cuts, size = [0], 0
    for position, length in enumerate(rounded.tolist()):
        size += 1
        if size * length > tokens:
            cuts.append(position)
            size = 1
    return [*cuts, len(rounded)] if len(rounded) else [0]
