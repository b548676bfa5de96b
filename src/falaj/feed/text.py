"""Tokens for language models: one long file of numbers, read as windows."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import CorruptData, Invalid, NotFound
from falaj.feed.batch_plan import AnyOrderSource
from falaj.feed.permutation import Ids


class Tokens(AnyOrderSource):
    """Windows of `length` tokens and the one after, which is what the last of them is to foretell: `{"tokens"}`, int64
    of shape (samples, length + 1). A raw file holds `dtype`, a `.npy` file says itself."""

    inline = True

    def __init__(self, tokens: Path | str | NDArray[Any], length: int, dtype: Any = np.uint16) -> None:
        flat = _map_tokens(Path(tokens), np.dtype(dtype)) if isinstance(tokens, Path | str) else np.asarray(tokens)
        if flat.ndim != 1 or flat.dtype.kind not in "iu":
            raise Invalid(f"tokens are a flat array of whole numbers, not {flat.ndim} dimensions of {flat.dtype}")
        if length < 1 or len(flat) <= length:
            raise Invalid(f"{len(flat)} tokens hold no window of {length} and one more", "choose a smaller length")
        count, size = (len(flat) - 1) // length, flat.dtype.itemsize
        self._windows = np.lib.stride_tricks.as_strided(flat, (count, length + 1), (length * size, size))

    def __len__(self) -> int:
        return len(self._windows)

    def take(self, ids: Ids) -> dict[str, Any]:
        """Read out of the file now, and not before."""
        return {"tokens": self._windows[ids].astype(np.int64)}


def _map_tokens(path: Path, dtype: "np.dtype[Any]") -> NDArray[Any]:
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    try:
        if path.suffix == ".npy":
            return np.asarray(np.load(path, mmap_mode="c", allow_pickle=False)).view(np.ndarray)
        return np.memmap(path, dtype, "c").view(np.ndarray)
    except (ValueError, EOFError) as error:
        raise CorruptData(
            f"{path} is no whole file of {dtype} tokens: {error}", "say its dtype=, or write it again"
        ) from error
