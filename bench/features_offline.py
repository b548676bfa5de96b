"""Training sets, one program for each way of making them: ours, hand-written Polars and DuckDB.

python features_offline.py duckdb FOLDER     one way, over the data that features_ground.py made there
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import pyarrow as pa
import pyarrow.parquet as pq
from features_ground import (
    DAY_US,
    LABELS,
    SPAN_DAYS,
    TTL_DAYS,
    USERS,
    VIEWS,
    batches,
    checksum,
    names,
    report,
)

RESTATED_ONCE = """
    WITH many AS (SELECT user_id, event FROM '{path}' GROUP BY ALL HAVING count(*) > 1)
    SELECT v.* FROM '{path}' v ANTI JOIN many USING (user_id, event) UNION ALL
    SELECT v.* FROM '{path}' v SEMI JOIN many USING (user_id, event)
    QUALIFY row_number() OVER (PARTITION BY user_id, event ORDER BY created DESC) = 1
"""


def duckdb(folder: Path) -> None:
    """By hand, ASOF after only restated rows were thinned out: the right answer, and a floor."""
    import duckdb as engine

    joins, columns = [], ["l.row"]
    for view in VIEWS:
        kept = RESTATED_ONCE.format(path=folder / f"{view}.parquet")
        joins.append(
            f"ASOF LEFT JOIN ({kept}) {view} ON l.user_id = {view}.user_id AND l.event_timestamp >= {view}.event"
        )
        fresh = f"{view}.event > l.event_timestamp - INTERVAL {TTL_DAYS} DAY"
        columns += [f"CASE WHEN {fresh} THEN {view}.{name} END AS {name}" for name in names(view)]
    query = f"SELECT {', '.join(columns)} FROM '{folder}/labels.parquet' l {' '.join(joins)}"  # noqa: S608 - our own files
    base = engine.connect()
    base.execute("SET threads = 2; SET TimeZone = 'UTC'; SET preserve_insertion_order = false")
    report(lambda: base.sql(query).to_arrow_table(), checksum)


def polars(folder: Path) -> None:
    """By hand, streaming: sort by (event, created), join backward, and no older than the TTL."""
    import datetime as dt

    import polars as pl

    tolerance = dt.timedelta(days=TTL_DAYS) - dt.timedelta(microseconds=1)

    def work() -> pa.Table:
        found = pl.scan_parquet(folder / "labels.parquet").sort("event_timestamp")
        for view in VIEWS:
            rows = pl.scan_parquet(folder / f"{view}.parquet").sort("event", "created").drop("created")
            rows = rows.rename({"event": "event_timestamp"})
            found = found.join_asof(
                rows, on="event_timestamp", by="user_id", tolerance=tolerance, check_sortedness=False
            )
        return found.collect(engine="streaming").to_arrow()

    report(work, checksum)


if __name__ == "__main__":
    acts: dict[str, Any] = {act.__name__: act for act in (duckdb, polars)}
    acts[sys.argv[1]](Path(sys.argv[2]), *(word for word in sys.argv[3:] if not word.startswith("--")))
