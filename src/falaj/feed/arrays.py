"""Columns in memory, and `.npy` and `.npz` files that are mapped, not read."""

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import CorruptData, Invalid
from falaj.feed.batch_plan import AnyOrderSource
from falaj.feed.permutation import Ids
from falaj.feed.piece_source import ColumnBlock, PieceSource


class ArraySource(AnyOrderSource):
    """Columns in memory, or mapped: a batch is one gather a column."""

    inline = True

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = {name: _to_column(values) for name, values in columns.items()}
        self._column_items = list(self.columns.items())
        sizes = {name: len(column) for name, column in self._column_items}
        if len(set(sizes.values())) > 1:
            length_texts = ", ".join(f"{name} has {size}" for name, size in sizes.items())
            raise Invalid(
                f"the columns are not of one length: {length_texts}", "every column has a value for every sample"
            )

    def __len__(self) -> int:
        return len(self._column_items[0][1]) if self._column_items else 0

    def take(self, ids: Ids) -> dict[str, Any]:
        """One gather a column; take, not [ids], which is several times slower for narrow rows."""
        return {name: column.take(ids, 0) for name, column in self._column_items}


class TensorColumn:
    """A tensor that numpy has no word for (bfloat16), taken from as if it were an array."""

    def __init__(self, tensor: Any) -> None:
        self.tensor, self.dtype, self.shape = tensor, tensor.dtype, tensor.shape

    def __len__(self) -> int:
        return len(self.tensor)

    def take(self, ids: Ids, axis: int) -> Any:
        """A tensor again."""
        import torch

        return self.tensor.index_select(axis, torch.from_numpy(ids).to(self.tensor.device))


def _to_column(values: Any) -> Any:
    if hasattr(values, "detach"):
        values = values.detach()
        kind = str(values.dtype).removeprefix("torch.")
        values = values.numpy() if values.is_cpu and hasattr(np, kind) else TensorColumn(values)
    elif not isinstance(values, TensorColumn):
        # Without its class: numpy asks a memmap more questions at every turn.
        values = np.asarray(values).view(np.ndarray)
    if not len(values.shape):
        raise Invalid("a column of one number is no column", "give one value for each sample")
    return values


def open_npy(files: Sequence[Path], columns: Sequence[str] | None, window: int) -> ArraySource | PieceSource:
    """Files of one name, but for the number at its end, are parts of a column; other names are other columns."""
    parts: dict[str, list[Path]] = {}
    for file in files:
        parts.setdefault(re.sub(r"[-_.]?\d+$", "", file.stem) or "data", []).append(file)
    if missing := sorted(set(columns or ()) - set(parts)):
        raise Invalid(f"there is no column {', '.join(missing)}", f"there are: {', '.join(sorted(parts))}")
    mapped = {name: [_map_npy(file) for file in parts[name]] for name in columns or parts}
    counts = {name: [len(part) for part in column_parts] for name, column_parts in mapped.items()}
    first, *others = counts
    for other in others:
        if counts[other] != counts[first]:
            raise Invalid(
                f"{other} and {first} are cut differently: {counts[other]} and {counts[first]} samples a file",
                "write every column in files of the same lengths",
            )
    for name, column_parts in mapped.items():
        if mismatch := next(
            (n for n, part in enumerate(column_parts) if part[:0].dtype != column_parts[0].dtype), None
        ):
            raise Invalid(
                f"{parts[name][mismatch]} has numbers of another kind than {parts[name][0].name}", "write it anew"
            )
    if len(counts[first]) == 1:
        return ArraySource({name: column_parts[0] for name, column_parts in mapped.items()})
    pieces = [
        ColumnBlock({name: column_parts[n] for name, column_parts in mapped.items()}) for n in range(len(counts[first]))
    ]
    size = sum(part.nbytes for column_parts in mapped.values() for part in column_parts)
    return PieceSource(
        counts[first], lambda piece_numbers: pieces[piece_numbers[0]], size_bytes=size, window=window, inline=True
    )


def open_npz(file: Path, columns: Sequence[str] | None) -> ArraySource:
    """Members that are stored as they are get mapped; compressed ones are read."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if missing := sorted(set(columns or ()) - set(members)):
                raise Invalid(f"{file.name} has no column {', '.join(missing)}", f"it has: {', '.join(members)}")
            selected = {name: members[name] for name in columns or members}
            return ArraySource({name: _read_member(file, archive, info) for name, info in selected.items()})
    except (zipfile.BadZipFile, OSError, ValueError, EOFError) as error:
        raise CorruptData(f"{file} is no whole .npz file: {error}", "copy or write it again") from error


def _read_member(file: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    if info.compress_type != zipfile.ZIP_STORED:
        with archive.open(info) as stream:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
    with file.open("rb") as raw:
        raw.seek(info.header_offset + 26)
        name_length, extra_length = (int.from_bytes(raw.read(2), "little") for _ in range(2))
        raw.seek(info.header_offset + 30 + name_length + extra_length)
        version = np.lib.format.read_magic(raw)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, columnwise, dtype = read_header(raw)
        return np.memmap(file, dtype, "c", raw.tell(), shape, "F" if columnwise else "C")


def _map_npy(file: Path) -> NDArray[Any]:
    try:
        # "c": writing into a batch's source stays private, and torch takes the array without a warning.
        mapped = np.load(file, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CorruptData(f"{file} is no whole .npy file: {error}", "copy or write it again") from error
    if not mapped.ndim:
        raise Invalid(f"{file} holds one number", "a column has one value for each sample")
    return np.asarray(mapped).view(np.ndarray)
