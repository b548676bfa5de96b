"""Rows for the repository beside this file, and what Feast itself makes of them; run under a Python that has Feast.

python values.py rows FOLDER      writes the Parquet files the repository names
python values.py history FOLDER   prints a training set of the service's views as JSON, by Feast's DuckDB engine
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def at(text: str) -> datetime:
    """A moment in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


TRIPS: dict[str, list[Any]] = {
    "driver_id": [1001, 1001, 1002, 1003, 1004, 1001],
    "event_timestamp": [
        *(at("2026-01-01T00:00"), at("2026-01-01T06:00"), at("2026-01-01T03:00"), at("2025-12-20")),
        *(at("2026-02-01"), at("2026-01-01T00:00")),
    ],
    "created": [
        *(at("2026-01-01T00:05"), at("2026-01-01T06:05"), at("2026-01-01T03:05"), at("2025-12-20")),
        *(at("2026-02-01"), at("2026-01-01T01:00")),
    ],
    "acc_rate": [1.0, 2.0, 0.1, 4.0, 5.0, 6.0],
    "trips": [1, 2, 3, 4, 5, 6],
    "city": ["دبي", "b", "c", None, "e", "f"],
    "active": [True, False, True, True, False, True],
    "last_at": [at("2025-01-01")] * 6,
    "scores": [[1.0], [2.0, 3.0], [], [4.0], [5.0], [6.0]],
}
LABELS: dict[str, list[Any]] = {
    "driver_id": [1001, 1001, 1001, 1002, 1003, 1004, 9999, 1002],
    "customer_id": ["c1", "c1", "c2", "c1", "c1", "c1", "c1", "c1"],
    "event_timestamp": [
        *(at("2026-01-01T05:59:59"), at("2026-01-01T06:00"), at("2026-01-01T23:00"), at("2026-01-01T04:00")),
        *(at("2026-01-01T04:00"), at("2026-01-01T04:00"), at("2026-01-01T04:00"), at("2026-01-03T04:00")),
    ],
}
WANTED = ("conv_rate", "acc_rate", "trips", "city", "active", "rank", "rides_together")


def rows(folder: Path) -> None:
    """Write the files."""
    small = {
        "conv": pa.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], pa.float32()),
        "rank": pa.array([1, 2, 3, 4, 5, 6], pa.int32()),
    }
    moment = [at("2026-01-01")]
    tables = {
        "trips": {**TRIPS, **small},
        "pairs": {"driver_id": [1001], "customer_id": ["c1"], "event_timestamp": moment, "rides_together": [3]},
        "pushed": {"driver_id": [1001], "at": moment, "speed": [88.5]},
        "fuel": {"fuel": [1.5], "event_timestamp": moment},
    }
    (folder / "data").mkdir(exist_ok=True)
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / "data" / f"{name}.parquet")


def history(folder: Path) -> None:
    """What Feast answers."""
    import pandas as pd
    from feast import FeatureStore

    sys.path.insert(0, str(folder))
    import definitions as made

    store = FeatureStore(repo_path=str(folder))
    store.apply([made.driver, made.customer, made.hourly, made.pairs])
    wanted = [f"driver_hourly:{name}" for name in WANTED[:-1]] + ["pairs:rides_together"]
    table = store.get_historical_features(entity_df=pd.DataFrame(LABELS), features=wanted).to_arrow()
    answers = table.sort_by([("event_timestamp", "ascending"), ("driver_id", "ascending")]).to_pylist()
    print(json.dumps([{**row, "event_timestamp": row["event_timestamp"].isoformat()} for row in answers], indent=1))


if __name__ == "__main__":
    {"rows": rows, "history": history}[sys.argv[1]](Path(sys.argv[2]))
