"""Training sets, one program for each way of making them: ours, hand-written Polars and DuckDB.

python features_offline.py duckdb FOLDER     one way, over the data that features_ground.py made there
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from features_ground import BATCH, DAY_US, TTL_DAYS, VIEWS, batches, checksum, names, report

from falaj.asof.records import FeatureField

KEY = FeatureField("user_id", "int64")
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


def plan(view: str) -> Any:
    """A view of the data as our engine knows it."""
    from falaj.asof.records import ViewPlan

    fields = tuple(FeatureField(name, "float64") for name in names(view))
    wanted = tuple(names(view))
    return ViewPlan(f"view:bench/{view}@v1", "", (KEY,), fields, wanted, wanted, TTL_DAYS * DAY_US)


def ours_rows(folder: Path) -> None:
    """Rows into segments, as ingestion does once: not part of a training set, shown beside it."""
    from falaj.asof.row_files import RowSchema, write_rows

    def work() -> None:
        for view in VIEWS:
            shutil.rmtree(folder / view, ignore_errors=True)
            schema = RowSchema((KEY,), {"": plan(view).stored})
            write_rows(pq.ParquetFile(folder / f"{view}.parquet").iter_batches(BATCH), schema, folder / view)

    report(work)


def ours_history(folder: Path) -> None:
    """A training set of rows we own."""
    from falaj.asof.row_files import list_partition_segments
    from falaj.asof.training_sets import JoinedView, SegmentRows, build_training_set

    def work() -> pa.Table:
        views = [JoinedView(plan(view), SegmentRows(list_partition_segments(folder / view))) for view in VIEWS]
        return build_training_set(pq.read_table(folder / "labels.parquet"), "event_timestamp", views)

    report(work, checksum)


def ours_foreign(folder: Path) -> None:
    """A training set of somebody's Parquet as it lies."""
    from falaj.asof.external_rows import ExternalRows
    from falaj.asof.training_sets import JoinedView, build_training_set

    def work() -> pa.Table:
        views = [JoinedView(plan(v), ExternalRows((folder / f"{v}.parquet",), "event", "created")) for v in VIEWS]
        return build_training_set(pq.read_table(folder / "labels.parquet"), "event_timestamp", views)

    report(work, checksum)


def ours_large(folder: Path, count: str) -> None:
    """Far more rows than memory is given for: written in parts, joined part by part. Peak memory is of both."""
    from falaj.asof.row_files import RowSchema, list_partition_segments, write_rows
    from falaj.asof.training_sets import JoinedView, SegmentRows, build_training_set

    to = folder / "large"

    def work() -> pa.Table:
        rows = batches(int(count), names("v0"), 5, users=int(count) // 50)
        write_rows(rows, RowSchema((KEY,), {"": plan("v0").stored}), to)
        labels = pq.read_table(folder / "labels.parquet")
        return build_training_set(
            labels, "event_timestamp", [JoinedView(plan("v0"), SegmentRows(list_partition_segments(to)))]
        )

    report(work, lambda made: {"num_rows": made.num_rows, "found": made.num_rows - made["v0_f0"].null_count})


if __name__ == "__main__":
    acts: dict[str, Any] = {
        act.__name__: act for act in (duckdb, polars, ours_rows, ours_history, ours_foreign, ours_large)
    }
    acts[sys.argv[1]](Path(sys.argv[2]), *(word for word in sys.argv[3:] if not word.startswith("--")))
