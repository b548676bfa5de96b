"""What sets are spread over: views with ties, late rows, nulls, NaNs, a face apart, windows, several chapters."""

import random
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from falaj.asof import row_files

HOUR = 3_600_000_000
START = 1_770_000_000_000_000
NANS = [struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (0x7FF8000000000000, 0xFFF8000000000001)]
DEFINITIONS = """
from falaj.features import Entity, Feature, Request, Service, Source, Window, col, on_demand, view

customer = Entity("fraud/customer", keys={"customer_id": "string"})
shop = Entity("fraud/shop", keys={"shop_id": "int64", "city": "string"})
spend = view("fraud/spend", customer, Source("dataset:fraud/spend", event="at", created="known"), ttl="12h",
             features=[Feature("amount", "float64"), Feature("text", "string"), Feature("codes", "list[int64]"),
                       Feature("salary", "float64", label="AE-PDPL,sensitive")])
sales = view("fraud/sales", shop, Source("push", event="at"),
             features=[Feature("value", "float64"), Feature("buyer", "string")],
             windows=[Window("sum", "value", "6h"), Window("count", over="1h"), Window("mean", "value", "1d"),
                      Window("distinct", "buyer", "1d"), Window("last", "value", "7d", n=3)])


@on_demand(inputs=[spend["amount"], Request("price", "float64")], features={"times": "float64"})
def times(columns):
    return {"times": columns["price"] + columns["amount"]}


both = Service("fraud/both", [spend, sales, times])
"""


def lay_ground(here: Any, folder: Path, monkeypatch: Any, labels: int = 3000) -> None:
    """Two chapters of one view and two of another, in many partitions, and labels in several files."""
    monkeypatch.setattr(row_files, "_PARTITION_BYTES", 4096)
    rng = random.Random(7)
    (folder / "features.py").write_text(DEFINITIONS)
    (folder / "spend").mkdir()
    for chapter in range(2):
        pq.write_table(_spend(rng, 900), folder / "spend" / f"{chapter}.parquet")
        here.catalog.publish("dataset:fraud/spend", str(folder / "spend"))
        if not chapter:
            here.features.apply(str(folder / "features.py"))
        here.features.ingest("view:fraud/spend")
        here.features.push("view:fraud/sales", _sales(rng, 600))
        here.features.rows("view:fraud/sales")
    (folder / "labels").mkdir()
    made = _labels(rng, labels)
    for number, start in enumerate(range(0, labels, 1300)):
        pq.write_table(made.slice(start, 1300), folder / "labels" / f"{number}.parquet", row_group_size=700)
    here.catalog.publish("dataset:fraud/labels", str(folder / "labels"))


def read_set(here: Any, ref: Any, folder: Path) -> pa.Table:
    """A published set, as a reader has it."""
    here.catalog.checkout(ref, str(folder))
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])


def bits(table: pa.Table) -> dict[str, list[Any]]:
    """Every value down to the bits of NaNs and of zeros."""
    return {name: [_bits(one) for one in table.column(name).to_pylist()] for name in table.column_names}


def _bits(value: Any) -> Any:
    if isinstance(value, float):
        return struct.pack("<d", value)
    return [_bits(one) for one in value] if isinstance(value, list) else value


def _float(rng: random.Random) -> float | None:
    return rng.choice([None, *NANS, -0.0, 0.0, 1e300, -1e-300, rng.random(), rng.random() * 100])


def _spend(rng: random.Random, count: int) -> pa.Table:
    events = [START + rng.randrange(100) * HOUR for _ in range(count)]
    moment = pa.timestamp("us", "UTC")
    return pa.table({
        "customer_id": [f"c{rng.randrange(90)}" for _ in range(count)],
        "at": pa.array(events, moment),
        "known": pa.array([one + rng.randrange(-20, 30) * HOUR for one in events], moment),
        "amount": pa.array([_float(rng) for _ in range(count)], pa.float64()),
        "text": [rng.choice([None, "", "دبي", f"t{number}"]) for number in range(count)],
        "codes": pa.array([rng.choice([None, [], [1, None], [one]]) for one in range(count)], pa.list_(pa.int64())),
        "salary": pa.array([_float(rng) for _ in range(count)], pa.float64()),
    })  # fmt: skip


def _sales(rng: random.Random, count: int) -> pa.Table:
    return pa.table({
        "shop_id": [rng.randrange(40) for _ in range(count)],
        "city": [rng.choice(["Dubai", "", "دبي"]) for _ in range(count)],
        "at": pa.array([START + rng.randrange(100 * HOUR) for _ in range(count)], pa.timestamp("us", "UTC")),
        "value": pa.array([rng.choice([None, -0.0, rng.random(), 1e16]) for _ in range(count)], pa.float64()),
        "buyer": [rng.choice([None, "a", "b", "c"]) for _ in range(count)],
    })  # fmt: skip


def _labels(rng: random.Random, count: int) -> pa.Table:
    return pa.table({
        "customer_id": [rng.choice([None, f"c{rng.randrange(100)}"]) for _ in range(count)],
        "shop_id": pa.array([rng.choice([None, *range(45)]) for _ in range(count)], pa.int64()),
        "city": [rng.choice(["Dubai", "", "دبي", "Ajman"]) for _ in range(count)],
        "moment": pa.array([START + rng.randrange(-5, 130) * HOUR for _ in range(count)], pa.timestamp("us", "UTC")),
        "price": pa.array([rng.random() for _ in range(count)], pa.float64()),
        "label": [rng.random() < 0.5 for _ in range(count)],
    })  # fmt: skip
