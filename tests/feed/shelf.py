"""The same samples in every form that a source can have. Values tell the number of their sample."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import torch

from falaj.feed.shards import write_shards

SIZE = 500


class Mapped(torch.utils.data.Dataset):
    """Map-style, item by item."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"x": np.full(3, number, np.float32), "y": number}


class Many(Mapped):
    """Map-style that knows how to give many."""

    def __getitems__(self, numbers: list[int]) -> list[dict[str, Any]]:
        return [super(Many, self).__getitem__(number) for number in numbers]


class Streamed(torch.utils.data.IterableDataset):
    """Iterable-style; what an epoch gives depends on set_epoch."""

    def __init__(self, size: int = SIZE) -> None:
        self.size, self.epoch, self.epochs = size, 0, []

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.epochs.append(epoch)

    def __iter__(self) -> Any:
        for number in range(self.size):
            value = (number + self.epoch * 7) % self.size
            yield {"x": np.full(3, value, np.float32), "y": value}


class Sized(Streamed):
    """Iterable-style that says how long it is."""

    def __len__(self) -> int:
        return self.size


def columns(size: int = SIZE) -> dict[str, Any]:
    y = np.arange(size)
    return {"x": np.repeat(y, 3).reshape(-1, 3).astype(np.float32), "y": y}


def table(size: int = SIZE) -> pa.Table:
    held = columns(size)
    return pa.table({"x": pa.FixedSizeListArray.from_arrays(held["x"].ravel(), 3), "y": held["y"]})


def put(kind: str, folder: Path, size: int = SIZE) -> Any:
    """The samples as `kind`: what `open_source` is given."""
    held = columns(size)
    if kind in {"arrays", "tensors"}:
        return held if kind == "arrays" else {name: torch.from_numpy(column) for name, column in held.items()}
    if kind in MADE:
        return MADE[kind](size)
    folder.mkdir(parents=True, exist_ok=True)
    WRITE[kind](folder, held, size)
    return folder


def _npy(folder: Path, held: dict[str, Any], size: int) -> None:
    del size
    for name, column in held.items():
        np.save(folder / f"{name}.npy", column)


def _npy_parts(folder: Path, held: dict[str, Any], size: int) -> None:
    for name, column in held.items():
        for part, low in enumerate(range(0, size, 120)):
            np.save(folder / f"{name}-{part:03d}.npy", column[low : low + 120])


def _parquet(folder: Path, held: dict[str, Any], size: int) -> None:
    del held
    half = size // 2
    pyarrow.parquet.write_table(table(size)[:half], folder / "a.parquet", row_group_size=37)
    pyarrow.parquet.write_table(table(size)[half:], folder / "b.parquet", row_group_size=53)


def _arrow(folder: Path, held: dict[str, Any], size: int) -> None:
    del held
    with pa.OSFile(str(folder / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table(size).schema) as writer:
        writer.write_table(table(size), max_chunksize=41)


def _jsonl(folder: Path, held: dict[str, Any], size: int) -> None:
    lines = [json.dumps({"x": held["x"][n].tolist(), "y": n}) for n in range(size)]
    (folder / "a.jsonl").write_text("\n".join(lines[:100]) + "\n\n")
    (folder / "b.jsonl").write_text("\n".join(lines[100:]))


def _tar(folder: Path, held: dict[str, Any], size: int) -> None:
    for part, low in enumerate(range(0, size, 200)):
        with tarfile.open(folder / f"part-{part}.tar", "w") as archive:
            for number in range(low, min(low + 200, size)):
                raw = io.BytesIO()
                np.save(raw, held["x"][number])
                for suffix, found in (("x.npy", raw.getvalue()), ("y.cls", str(number).encode())):
                    member = tarfile.TarInfo(f"deep/{number:06d}.{suffix}")
                    member.size = len(found)
                    archive.addfile(member, io.BytesIO(found))


MADE = {"map": Mapped, "many": Many, "stream": Streamed, "sized": Sized}
WRITE = {
    "npy": _npy,
    "npy parts": _npy_parts,
    "npz": lambda folder, held, _: np.savez(folder / "all.npz", **held),
    "npz packed": lambda folder, held, _: np.savez_compressed(folder / "all.npz", **held),
    "shards": lambda folder, held, _: write_shards(held, folder, shard_bytes=1),
    "parquet": _parquet,
    "feather": lambda folder, _, size: pyarrow.feather.write_feather(table(size), folder / "a.feather", chunksize=29),
    "arrow": _arrow,
    "jsonl": _jsonl,
    "tar": _tar,
}
KINDS = ["arrays", "tensors", *WRITE, *MADE]


def numbers(batch: dict[str, Any]) -> list[int]:
    """The numbers of the samples of a batch, which both columns must agree on."""
    y, x = batch.get("y", batch.get("y.cls")), batch.get("x", batch.get("x.npy"))
    found = torch.as_tensor(y).tolist()
    assert torch.as_tensor(np.asarray(x))[:, 0].long().tolist() == found
    return found
