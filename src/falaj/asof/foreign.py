"""Rows that lie in files of others: Parquet, read as it is."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from falaj.asof.arrow import typed, whole
from falaj.asof.keys import typed_key
from falaj.asof.moments import moments
from falaj.asof.records import MISSING, ViewPlan
from falaj.asof.rows import OwnRows


@dataclass(frozen=True, slots=True)
class ForeignRows:
    """Where rows of a view lie in Parquet, and what their columns are called there."""

    paths: Sequence[Path]
    event: str
    created: str = ""
    keys: Sequence[str] = ()
    """In the order of the plan's keys; called as there when empty."""
    columns: Mapping[str, str] | None = None
    """Stored name to that in the files, where they differ."""
    zone: str = ""
    sql: str = ""

    @contextmanager
    def opened(self, plan: ViewPlan, asked: object, memory_bytes: int) -> Iterator[OwnRows]:
        table = pa.concat_tables([pq.read_table(path) for path in self.paths])
        event = moments(table[self.event], self.zone)
        created = moments(table[self.created], self.zone) if self.created else event
        created = np.where(created == MISSING, event, created)
        out = {}
        for at, field in enumerate(plan.keys):
            name = self.keys[at] if self.keys else field.name
            out[field.name] = typed_key(whole(table[name]), field.type, self.zone)
        good = event != MISSING
        for column in out.values():
            good &= column.is_valid().to_numpy(zero_copy_only=False)
        for name, ints in (("event", event), ("created", created), ("seq", np.arange(len(event)))):
            out[name] = pa.array(ints)
        for field in plan.stored:
            out[field.name] = typed(
                whole(table[(self.columns or {}).get(field.name, field.name)]), field.type, self.zone
            )
        yield OwnRows((), pa.table(out).filter(pa.array(good)))
