"""The loader of training: samples per CPU second, against a bare gather, raw pyarrow, MosaicML Streaming, WebDataset.

Run by `python bench/train_loader.py`, or as a part of `make bench NAME=train`. All read the same samples of 2 KB, in
random order, to batches of 256 that the reader can compute on. Every contender is a process of its own with one thread
of torch; CPU seconds are of the whole process, all its threads counted; files are in the page cache. Rounds take turns
and medians are told. ROUNDS and SAMPLES make it smaller.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scratch import folder

from tests.servers.peers import peer
from tests.servers.process import Missing

ROUNDS = int(os.environ.get("ROUNDS", "5"))
SAMPLES = int(os.environ.get("SAMPLES", "50000"))
TORCH = "torch==2.13.0"
STREAMING = ("mosaicml-streaming==0.13.0", TORCH, "torchvision==0.28.0", "transformers", "Pillow")
WEBDATASET = ("webdataset==1.0.2", TORCH, "numpy")
Bar = tuple[float, float, bool, str]

COMMON = """
import os, resource, sys, time
from pathlib import Path
import numpy as np
ROOT, SIZE, BATCH = Path(sys.argv[1]), int(sys.argv[2]), 256
def cpu():
    of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in of)
def tell(read, size):
    read(20 * BATCH)
    began = cpu()
    seen = read(size)
    assert seen >= size - BATCH
    print(seen / (cpu() - began))
def samples():
    return np.random.default_rng(1).integers(0, 256, (SIZE, 2048), np.uint8)
"""

WRITE = (
    COMMON
    + """
import pyarrow as pa, pyarrow.parquet as pq
from falaj.feed.shards import write_shards
held = {"x": samples(), "y": np.arange(SIZE)}
np.save(ROOT / "bare.npy", held["x"])
write_shards(held, ROOT / "shards")
rows = pa.FixedSizeBinaryArray.from_buffers(pa.binary(2048), SIZE, [None, pa.py_buffer(held["x"])])
pq.write_table(pa.table({"x": rows, "y": held["y"]}), ROOT / "rows.parquet", row_group_size=1000)
rng = np.random.default_rng(2)
wide = {f"c{n}": rng.normal(size=8 * SIZE).astype(np.float32) for n in range(32)}
pq.write_table(pa.table({**wide, "y": np.arange(8 * SIZE)}), ROOT / "wide.parquet", row_group_size=20000)
"""
)

GATHER = (
    COMMON
    + """
held = np.load(ROOT / "bare.npy", mmap_mode="r")
rng = np.random.default_rng(3)
def read(size):
    seen = 0
    while seen < size:
        order = rng.permutation(SIZE)
        for low in range(0, min(SIZE, size - seen), BATCH):
            seen += len(held[order[low : low + BATCH]])
    return seen
tell(read, SIZE * int(sys.argv[3]))
"""
)

OURS = (
    COMMON
    + """
import torch
torch.set_num_threads(1)
from falaj.feed.batch_loader import BatchLoader
from falaj.feed.sources import open_source
feed = BatchLoader(open_source(ROOT / sys.argv[3], window=int(sys.argv[4])), BATCH, seed=1)
def read(size):
    return sum(len(given.batch["y"]) for given in feed.stream(0, size // BATCH))
tell(read, len(feed.source) * int(sys.argv[5]))
"""
)

# What a careful user writes by hand: the same windows of row groups, read at once, one gather a column, tensors.
ARROW = (
    COMMON
    + """
import pyarrow as pa, pyarrow.parquet as pq, torch
torch.set_num_threads(1)
window = int(sys.argv[4])
opened = pq.ParquetFile(ROOT / sys.argv[3], memory_map=True)
rng = np.random.default_rng(3)
def array(column):
    joined = column.combine_chunks()
    if isinstance(joined, pa.ChunkedArray):
        joined = pa.concat_arrays(joined.chunks)
    if pa.types.is_fixed_size_binary(joined.type):
        return np.frombuffer(joined.buffers()[1], np.uint8).reshape(len(joined), -1)
    return joined.to_numpy()
def read(size):
    groups, seen = [], 0
    while seen < size:
        groups = groups or rng.permutation(opened.num_row_groups).tolist()
        some, groups = groups[:window], groups[window:]
        table = opened.read_row_groups(some, use_threads=False)
        columns = {name: array(table[name]) for name in table.column_names}
        order = rng.permutation(len(table))
        for low in range(0, len(order), BATCH):
            some = order[low : low + BATCH]
            batch = {name: torch.from_numpy(column.take(some, 0)) for name, column in columns.items()}
            seen += len(batch["y"])
    return seen
tell(read, opened.metadata.num_rows * int(sys.argv[5]))
"""
)

MDS = (
    COMMON
    + """
import torch
torch.set_num_threads(1)
# Streaming imports torchvision, whose compiled part wants CUDA; nothing here uses it, so it is told of what it lacks.
ops = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    ops.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
where = str(ROOT / "mds")
if sys.argv[3] == "write":
    with MDSWriter(out=where, columns={"x": "bytes", "y": "int"}) as out:
        for n, row in enumerate(samples()):
            out.write({"x": row.tobytes(), "y": n})
    sys.exit()
clean_stale_shared_memory()
def collate(rows):
    held = np.stack([np.frombuffer(row["x"], np.uint8) for row in rows])
    return {"x": torch.from_numpy(held), "y": torch.tensor([row["y"] for row in rows])}
data = StreamingDataset(local=where, shuffle=True, batch_size=BATCH)
def read(size):
    seen = 0
    for batch in torch.utils.data.DataLoader(data, batch_size=BATCH, collate_fn=collate):
        seen += len(batch["y"])
        if seen >= size:
            break
    return seen
tell(read, SIZE // 2)
"""
)

WDS = (
    COMMON
    + """
import torch, webdataset as wds
torch.set_num_threads(1)
if sys.argv[3] == "write":
    with wds.ShardWriter(str(ROOT / "wds-%06d.tar"), maxcount=10000, verbose=0) as out:
        for n, row in enumerate(samples()):
            out.write({"__key__": f"{n:08d}", "x": row.tobytes(), "y": str(n).encode()})
    sys.exit()
def collate(rows):
    held = np.stack([np.frombuffer(x, np.uint8) for x, _ in rows])
    return {"x": torch.from_numpy(held), "y": torch.tensor([int(y) for _, y in rows])}
shards = sorted(str(path) for path in ROOT.glob("wds-*.tar"))
def read(size):
    data = wds.WebDataset(shards, shardshuffle=len(shards)).shuffle(5000).to_tuple("x", "y")
    seen = 0
    for batch in torch.utils.data.DataLoader(data.batched(BATCH, collation_fn=collate), batch_size=None):
        seen += len(batch["y"])
        if seen >= size:
            break
    return seen
tell(read, SIZE // 2)
"""
)


def bars() -> dict[str, Bar]:
    """The value, its bar, whether it is to be at least that, and what it says."""
    with folder() as home:
        return _measure(home)


def _measure(home: Path) -> dict[str, Bar]:
    here = Path(sys.executable)
    _run(here, WRITE, home)
    contenders: dict[str, tuple[Path, str, tuple[str, ...]]] = {
        "gather": (here, GATHER, ("20",)),
        "shards": (here, OURS, ("shards", "0", "20")),
        "parquet": (here, OURS, ("rows.parquet", "8", "8")),
        "arrow": (here, ARROW, ("rows.parquet", "8", "8")),
        "wide parquet": (here, OURS, ("wide.parquet", "4", "3")),
        "wide arrow": (here, ARROW, ("wide.parquet", "4", "3")),
    }
    missing = {}
    for name, needs, script in (("streaming", STREAMING, MDS), ("webdataset", WEBDATASET, WDS)):
        try:
            python = peer(name, *needs) / "python"
            _run(python, script, home, "write")
            contenders[name] = (python, script, ("read",))
        except Missing as why:
            missing[name] = str(why)
    rounds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, (python, script, words) in contenders.items():
            rounds[name].append(float(_run(python, script, home, *words)))
    return _judged({name: statistics.median(found) for name, found in rounds.items()}, missing)


def _judged(rate: dict[str, float], missing: dict[str, str]) -> dict[str, Bar]:
    def ratio(ours: str, theirs: str, bar: float) -> Bar:
        if theirs in missing:
            return 0.0, bar, True, f"not measured: {missing[theirs]}"
        return rate[ours] / rate[theirs], bar, True, f"{rate[ours]:,.0f} / {rate[theirs]:,.0f} samples per CPU second"

    return {
        "fixed shapes / batched memmap gather": ratio("shards", "gather", 0.7),
        "Parquet / raw pyarrow, 2 KB rows": ratio("parquet", "arrow", 0.9),
        "Parquet / raw pyarrow, 33 numbers a row": ratio("wide parquet", "wide arrow", 0.9),
        "2 KB samples / MosaicML Streaming": ratio("shards", "streaming", 20.0),
        "2 KB samples / WebDataset": ratio("shards", "webdataset", 20.0),
    }


def _run(python: Path, script: str, home: Path, *words: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [str(python), "-c", script, str(home), str(SAMPLES), *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    if done.returncode:
        raise RuntimeError(f"{python} {words}: {done.stderr[-2000:]}")
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def main() -> int:
    """A table for people, then one line of JSON."""
    found = bars()
    for name, (value, bar, least, note) in found.items():
        good = value >= bar if least else value <= bar
        print(f"{name:42} {value:8.2f}  {'>=' if least else '<='} {bar:<6} {'ok' if good else 'MISSED':7} {note}")
    told: dict[str, Any] = {
        name: {"value": v, "bar": b, "at_least": a, "note": n} for name, (v, b, a, n) in found.items()
    }
    print(json.dumps(told))
    return int(any(value < bar if least else value > bar for value, bar, least, _ in found.values()))


if __name__ == "__main__":
    sys.exit(main())
