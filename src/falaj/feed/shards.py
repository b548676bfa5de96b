"""Shards of our own: the form that is read fastest. Any dataset can be written into it once.

A shard is one file: a mark, the length and checksum of a JSON header, the header, and blobs at multiples of 64 bytes.
A column of equal shapes is one blob; texts, bytes and arrays of different lengths are one blob and one of offsets.
`shards.json` comes last: rows, size and SHA-256 of every shard. A folder without it was not written to its end.
"""

import hashlib
import itertools
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Conflict, CorruptData, Invalid
from falaj.feed.file_cache import FileCache, SourceFile
from falaj.feed.permutation import Ids
from falaj.feed.piece_source import Column, ColumnBlock, PieceSource

INDEX_FILE, SHARD_SUFFIX = "shards.json", ".shard"
_KIND_BY_TYPE: dict[type, str] = {str: "text", bytes: "bytes"}
_MAGIC, _HEADER_STRUCT = b"FALAJSH1", struct.Struct("<8sII")
_VALUE_MAKERS: dict[str, Callable[[Any], Any]] = {
    "text": lambda part: bytes(part).decode(),
    "bytes": bytes,
    "arrays": lambda part: part,
}


def write_shards(rows: Any, folder: Path | str, *, shard_bytes: int = 1 << 28, ragged: Sequence[str] = ()) -> Path:
    """Write samples (mappings of columns, in any number), columns of arrays, or a source. `ragged` names columns whose
    arrays are of different lengths, though the first ones may be of one."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / INDEX_FILE).exists():
        raise Conflict(f"{folder} holds shards already", "write into a new folder")
    shards: list[dict[str, Any]] = []
    kinds: dict[str, str] = dict.fromkeys(ragged, "arrays")
    pending: list[Mapping[str, Any]] = []
    size = 0
    for block in itertools.chain(_iter_blocks(rows), [None]):
        if pending and (block is None or size >= shard_bytes):
            shards.append(_write_shard(folder, len(shards), pending, kinds))
            pending, size = [], 0
        if block is not None:
            pending.append(block)
            size += sum(_estimate_bytes(values) for values in block.values())
    _publish_file(folder / INDEX_FILE, [json.dumps({"format": 1, "columns": kinds, "shards": shards}).encode()])
    return folder


class RaggedColumn:
    """Values of different lengths, one after the other."""

    def __init__(self, offsets: NDArray[np.int64], values: NDArray[Any], kind: str) -> None:
        self._offsets, self._values, self._kind = offsets, values, kind

    def pick(self, rows: Ids) -> list[Any]:
        """As texts, bytes or arrays."""
        make, values = _VALUE_MAKERS[self._kind], self._values
        spans = zip(self._offsets.take(rows).tolist(), self._offsets.take(rows + 1).tolist(), strict=True)
        return [make(values[low:high]) for low, high in spans]


def open_shards(folder: Path, columns: Sequence[str] | None, window: int, cache: FileCache | None) -> PieceSource:
    """A source of what `write_shards` wrote. Sizes are looked at now, what is inside by `verify`."""
    index = _read_index(folder)
    kinds: dict[str, str] = index["columns"]
    if missing := sorted(set(columns or ()) - set(kinds)):
        raise Invalid(f"{folder} has no column {', '.join(missing)}", f"it has: {', '.join(kinds)}")
    for shard in index["shards"]:
        if not (path := folder / shard["file"]).is_file() or path.stat().st_size != shard["bytes"]:
            raise CorruptData(
                f"{path} is missing or not of its {shard['bytes']} bytes", "copy or write the shards again"
            )
    files = [SourceFile(folder / shard["file"], cache, shard["sha256"]) for shard in index["shards"]]

    def load(pieces: list[int]) -> ColumnBlock:
        with files[pieces[0]].local() as path:
            return _read_block(path, kinds, columns or tuple(kinds))

    counts, size = ([shard[key] for shard in index["shards"]] for key in ("rows", "bytes"))
    is_inline = cache is None and all(kinds[name] == "fixed" for name in columns or kinds)
    return PieceSource(counts, load, size_bytes=sum(size), window=window, inline=is_inline)


def verify_shards(folder: Path | str) -> None:
    """Read every byte; Corrupt names the first shard that is not what was written."""
    for shard in _read_index(Path(folder))["shards"]:
        with (Path(folder) / shard["file"]).open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != shard["sha256"]:
                raise CorruptData(f"{Path(folder) / shard['file']} is not what was written", "copy or write it again")


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX_FILE).read_bytes())
        is_supported = index["format"] == 1 and isinstance(index["shards"], list)
    except FileNotFoundError:
        raise CorruptData(
            f"{folder} has shards but no {INDEX_FILE}: it was not written to its end", "write it again"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"{folder / INDEX_FILE} cannot be read: {error}", "write the shards again") from error
    if not is_supported:
        raise Invalid(f"{folder} is of format {index['format']}, which this release does not know", "take a newer one")
    return dict(index)


def _iter_blocks(rows: Any) -> Iterator[Mapping[str, Any]]:
    """Many rows at a time, as columns."""
    if hasattr(rows, "take") and hasattr(rows, "order"):
        for low in range(0, len(rows), 1024):
            yield rows.take(np.arange(low, min(low + 1024, len(rows)), dtype=np.int64))
    elif isinstance(rows, Mapping):
        size = len(next(iter(rows.values())))
        for low in range(0, size, 1024):
            yield {name: values[low : low + 1024] for name, values in rows.items()}
    else:
        samples = iter(rows)
        while chunk := list(itertools.islice(samples, 1024)):
            mismatch = next((row for row in chunk if row.keys() != chunk[0].keys()), None)
            if mismatch is not None:
                raise Invalid(
                    f"a sample has {sorted(mismatch)}, others {sorted(chunk[0])}", "all have the same columns"
                )
            yield {name: [row[name] for row in chunk] for name in chunk[0]}


def _estimate_bytes(values: Any) -> int:
    return int(getattr(values, "nbytes", 0)) or sum(
        int(getattr(v, "nbytes", 0)) or len(v) for v in _with_lengths(values)
    )


def _with_lengths(values: Any) -> Iterable[Any]:
    return (value if hasattr(value, "__len__") else b"12345678" for value in values)


def _write_shard(folder: Path, number: int, blocks: list[Mapping[str, Any]], kinds: dict[str, str]) -> dict[str, Any]:
    blobs: dict[str, NDArray[Any]] = {}
    for name in blocks[0]:
        blobs.update(_encode_column(name, [block[name] for block in blocks], kinds))
    rows = sum(len(next(iter(block.values()))) for block in blocks)
    header: dict[str, Any] = {"rows": rows, "blobs": {}}
    offset = 0
    for name, blob in blobs.items():
        blob_info = {"dtype": blob.dtype.str, "shape": blob.shape, "at": offset, "crc": zlib.crc32(blob.data)}
        header["blobs"][name] = blob_info
        offset += -(-blob.nbytes // 64) * 64
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + _HEADER_STRUCT.size) % 64)
    parts: list[Any] = [_HEADER_STRUCT.pack(_MAGIC, len(text), zlib.crc32(text)), text]
    for blob in blobs.values():
        parts += [blob.data.cast("B") if blob.nbytes else b"", b"\0" * (-blob.nbytes % 64)]
    name = f"part-{number:06d}{SHARD_SUFFIX}"
    return {"file": name, "rows": rows, **_publish_file(folder / name, parts)}


def _publish_file(path: Path, parts: list[Any]) -> dict[str, Any]:
    digest, size, draft = hashlib.sha256(), 0, path.with_suffix(".tmp")
    with draft.open("wb") as stream:
        for part in parts:
            digest.update(part)
            size += stream.write(part)
    draft.rename(path)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _encode_column(name: str, blocks: list[Any], kinds: dict[str, str]) -> dict[str, NDArray[Any]]:
    values = list(itertools.chain.from_iterable(blocks)) if not isinstance(blocks[0], np.ndarray) else []
    first_value = values[0] if values else blocks[0]
    kind = _KIND_BY_TYPE.get(type(first_value)) or kinds.get(name) or _shape_kind(values)
    if kinds.setdefault(name, kind) != kind:
        raise Invalid(f"{name} is {kinds[name]} in one shard and {kind} in another", f"say ragged=[{name!r}]")
    try:
        if kind == "fixed":
            return {name: np.ascontiguousarray(np.concatenate(blocks) if not values else np.asarray(values))}
        if kind == "text":
            values = [value.encode() for value in values]
        parts = [np.frombuffer(v, np.uint8) if kind != "arrays" else np.asarray(v) for v in values or blocks[0]]
        part_ends = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
        return {name: np.ascontiguousarray(np.concatenate(parts)), f"{name}:ends": part_ends}
    except (ValueError, TypeError, AttributeError) as error:
        raise Invalid(f"the values of {name} are not of one kind: {error}", "all texts, all bytes or arrays") from error


def _shape_kind(values: list[Any]) -> str:
    return "fixed" if len({np.shape(value) for value in values}) <= 1 else "arrays"


def _read_block(path: Path, kinds: Mapping[str, str], columns: Sequence[str]) -> ColumnBlock:
    with path.open("rb") as stream:
        magic, length, crc = _HEADER_STRUCT.unpack(stream.read(_HEADER_STRUCT.size).ljust(_HEADER_STRUCT.size, b"\0"))
        text = stream.read(length)
    if magic != _MAGIC or zlib.crc32(text) != crc:
        raise CorruptData(f"the header of {path} is not what was written", "copy or write it again")
    blobs: dict[str, Any] = json.loads(text)["blobs"]

    def map_blob(name: str) -> NDArray[Any]:
        blob_info = blobs[name]
        if 0 in blob_info["shape"]:
            return np.empty(blob_info["shape"], blob_info["dtype"])
        start = _HEADER_STRUCT.size + length + blob_info["at"]
        return np.memmap(path, blob_info["dtype"], "c", start, tuple(blob_info["shape"])).view(np.ndarray)

    def read_column(name: str) -> Column:
        return (
            map_blob(name)
            if kinds[name] == "fixed"
            else RaggedColumn(map_blob(f"{name}:ends"), map_blob(name), kinds[name])
        )

    return ColumnBlock({name: read_column(name) for name in columns})
