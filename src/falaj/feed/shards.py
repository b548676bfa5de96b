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

from falaj.core.errors import Conflict, Corrupt, Invalid
from falaj.feed.cache import Cache, Kept
from falaj.feed.order import Ids
from falaj.feed.pieces import Block, Column, Pieces

INDEX, SUFFIX = "shards.json", ".shard"
_KINDS: dict[type, str] = {str: "text", bytes: "bytes"}
_MARK, _HEAD = b"FALAJSH1", struct.Struct("<8sII")
_MAKE: dict[str, Callable[[Any], Any]] = {
    "text": lambda part: bytes(part).decode(),
    "bytes": bytes,
    "arrays": lambda part: part,
}


def write_shards(rows: Any, folder: Path | str, *, shard_bytes: int = 1 << 28, ragged: Sequence[str] = ()) -> Path:
    """Write samples (mappings of columns, in any number), columns of arrays, or a source. `ragged` names columns whose
    arrays are of different lengths, though the first ones may be of one."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / INDEX).exists():
        raise Conflict(f"{folder} holds shards already", "write into a new folder")
    shards: list[dict[str, Any]] = []
    kinds: dict[str, str] = dict.fromkeys(ragged, "arrays")
    waiting: list[Mapping[str, Any]] = []
    size = 0
    for block in itertools.chain(_blocks(rows), [None]):
        if waiting and (block is None or size >= shard_bytes):
            shards.append(_write(folder, len(shards), waiting, kinds))
            waiting, size = [], 0
        if block is not None:
            waiting.append(block)
            size += sum(_weight(values) for values in block.values())
    _publish(folder / INDEX, [json.dumps({"format": 1, "columns": kinds, "shards": shards}).encode()])
    return folder


class Ragged:
    """Values of different lengths, one after the other."""

    def __init__(self, offsets: NDArray[np.int64], values: NDArray[Any], kind: str) -> None:
        self._offsets, self._values, self._kind = offsets, values, kind

    def pick(self, rows: Ids) -> list[Any]:
        """As texts, bytes or arrays."""
        make, values = _MAKE[self._kind], self._values
        ends = zip(self._offsets.take(rows).tolist(), self._offsets.take(rows + 1).tolist(), strict=True)
        return [make(values[low:high]) for low, high in ends]


def open_shards(folder: Path, columns: Sequence[str] | None, window: int, cache: Cache | None) -> Pieces:
    """A source of what `write_shards` wrote. Sizes are looked at now, what is inside by `verify`."""
    index = _index(folder)
    known: dict[str, str] = index["columns"]
    if missing := sorted(set(columns or ()) - set(known)):
        raise Invalid(f"{folder} has no column {', '.join(missing)}", f"it has: {', '.join(known)}")
    for shard in index["shards"]:
        if not (path := folder / shard["file"]).is_file() or path.stat().st_size != shard["bytes"]:
            raise Corrupt(f"{path} is missing or not of its {shard['bytes']} bytes", "copy or write the shards again")
    files = [Kept(folder / shard["file"], cache, shard["sha256"]) for shard in index["shards"]]

    def load(pieces: list[int]) -> Block:
        with files[pieces[0]].local() as path:
            return _read(path, known, columns or tuple(known))

    counts, size = ([shard[key] for shard in index["shards"]] for key in ("rows", "bytes"))
    plain = cache is None and all(known[name] == "fixed" for name in columns or known)
    return Pieces(counts, load, size_bytes=sum(size), window=window, inline=plain)


def verify(folder: Path | str) -> None:
    """Read every byte; Corrupt names the first shard that is not what was written."""
    for shard in _index(Path(folder))["shards"]:
        with (Path(folder) / shard["file"]).open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != shard["sha256"]:
                raise Corrupt(f"{Path(folder) / shard['file']} is not what was written", "copy or write it again")


def _index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_bytes())
        known = index["format"] == 1 and isinstance(index["shards"], list)
    except FileNotFoundError:
        raise Corrupt(f"{folder} has shards but no {INDEX}: it was not written to its end", "write it again") from None
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{folder / INDEX} cannot be read: {error}", "write the shards again") from error
    if not known:
        raise Invalid(f"{folder} is of format {index['format']}, which this release does not know", "take a newer one")
    return dict(index)


def _blocks(rows: Any) -> Iterator[Mapping[str, Any]]:
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
        while some := list(itertools.islice(samples, 1024)):
            odd = next((row for row in some if row.keys() != some[0].keys()), None)
            if odd is not None:
                raise Invalid(f"a sample has {sorted(odd)}, others {sorted(some[0])}", "all have the same columns")
            yield {name: [row[name] for row in some] for name in some[0]}


def _weight(values: Any) -> int:
    return int(getattr(values, "nbytes", 0)) or sum(int(getattr(v, "nbytes", 0)) or len(v) for v in _sized(values))


def _sized(values: Any) -> Iterable[Any]:
    return (value if hasattr(value, "__len__") else b"12345678" for value in values)


def _write(folder: Path, number: int, blocks: list[Mapping[str, Any]], kinds: dict[str, str]) -> dict[str, Any]:
    blobs: dict[str, NDArray[Any]] = {}
    for name in blocks[0]:
        blobs.update(_encode(name, [block[name] for block in blocks], kinds))
    rows = sum(len(next(iter(block.values()))) for block in blocks)
    header: dict[str, Any] = {"rows": rows, "blobs": {}}
    at = 0
    for name, blob in blobs.items():
        about = {"dtype": blob.dtype.str, "shape": blob.shape, "at": at, "crc": zlib.crc32(blob.data)}
        header["blobs"][name] = about
        at += -(-blob.nbytes // 64) * 64
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + _HEAD.size) % 64)
    parts: list[Any] = [_HEAD.pack(_MARK, len(text), zlib.crc32(text)), text]
    for blob in blobs.values():
        parts += [blob.data.cast("B") if blob.nbytes else b"", b"\0" * (-blob.nbytes % 64)]
    name = f"part-{number:06d}{SUFFIX}"
    return {"file": name, "rows": rows, **_publish(folder / name, parts)}


def _publish(path: Path, parts: list[Any]) -> dict[str, Any]:
    digest, size, draft = hashlib.sha256(), 0, path.with_suffix(".tmp")
    with draft.open("wb") as stream:
        for part in parts:
            digest.update(part)
            size += stream.write(part)
    draft.rename(path)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _encode(name: str, blocks: list[Any], kinds: dict[str, str]) -> dict[str, NDArray[Any]]:
    values = list(itertools.chain.from_iterable(blocks)) if not isinstance(blocks[0], np.ndarray) else []
    first = values[0] if values else blocks[0]
    kind = _KINDS.get(type(first)) or kinds.get(name) or _shape(values)
    if kinds.setdefault(name, kind) != kind:
        raise Invalid(f"{name} is {kinds[name]} in one shard and {kind} in another", f"say ragged=[{name!r}]")
    try:
        if kind == "fixed":
            return {name: np.ascontiguousarray(np.concatenate(blocks) if not values else np.asarray(values))}
        if kind == "text":
            values = [value.encode() for value in values]
        parts = [np.frombuffer(v, np.uint8) if kind != "arrays" else np.asarray(v) for v in values or blocks[0]]
        ends = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
        return {name: np.ascontiguousarray(np.concatenate(parts)), f"{name}:ends": ends}
    except (ValueError, TypeError, AttributeError) as error:
        raise Invalid(f"the values of {name} are not of one kind: {error}", "all texts, all bytes or arrays") from error


def _shape(values: list[Any]) -> str:
    return "fixed" if len({np.shape(value) for value in values}) <= 1 else "arrays"


def _read(path: Path, kinds: Mapping[str, str], wanted: Sequence[str]) -> Block:
    with path.open("rb") as stream:
        mark, length, crc = _HEAD.unpack(stream.read(_HEAD.size).ljust(_HEAD.size, b"\0"))
        text = stream.read(length)
    if mark != _MARK or zlib.crc32(text) != crc:
        raise Corrupt(f"the header of {path} is not what was written", "copy or write it again")
    blobs: dict[str, Any] = json.loads(text)["blobs"]

    def blob(name: str) -> NDArray[Any]:
        about = blobs[name]
        if 0 in about["shape"]:
            return np.empty(about["shape"], about["dtype"])
        start = _HEAD.size + length + about["at"]
        return np.memmap(path, about["dtype"], "c", start, tuple(about["shape"])).view(np.ndarray)

    def column(name: str) -> Column:
        return blob(name) if kinds[name] == "fixed" else Ragged(blob(f"{name}:ends"), blob(name), kinds[name])

    return Block({name: column(name) for name in wanted})
