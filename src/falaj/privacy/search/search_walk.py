"""The order in which everything is searched, and where a search that was interrupted goes on."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from falaj.privacy.search import (
    backup_contents,
    feature_rows,
    job_files,
    ledger_entries,
    leftovers,
    traffic,
    version_files,
)
from falaj.privacy.search.data_estate import DataEstate
from falaj.privacy.search.records import SearchCase, SearchOutcome, SearchStep

SearchFunction = Callable[[DataEstate, SearchCase, str], Iterator[SearchStep]]
NOT_RESUMABLE_CURSOR = "+"
"""The cursor of a step behind which a search cannot be resumed."""


def _bind_kind(search: Callable[[DataEstate, SearchCase, str, str], Iterator[SearchStep]], kind: str) -> SearchFunction:
    return lambda estate, case, after: search(estate, case, kind, after)


SEARCHES_BY_NAME: Mapping[str, SearchFunction] = {
    "leftovers": leftovers.search_leftovers,
    **{f"files/{kind}": _bind_kind(version_files.search_versions, kind) for kind in version_files.VERSION_KINDS},
    **{
        f"files/{kind}": _bind_kind(version_files.search_record_files, kind) for kind in version_files.RECORD_FILE_KINDS
    },
    "views": feature_rows.search_views,
    **{f"samples/{kind}": _bind_kind(feature_rows.search_samples, kind) for kind in ("service", "view")},
    "journals": traffic.search_journals,
    "job-logs": traffic.search_job_logs,
    "job-files": job_files.search_job_files,
    "records": ledger_entries.search_records,
    "log": ledger_entries.search_log,
    "backups": backup_contents.search_backups,
}
"""Every search by its name, in order."""


class WalkStep(NamedTuple):
    """What was found, and the cursor behind it: empty at the end, None where a search cannot be resumed."""

    outcomes: tuple[SearchOutcome, ...]
    cursor: str | None


def walk_searches(estate: DataEstate, case: SearchCase, cursor: str = "") -> Iterator[WalkStep]:
    """Search everything from a cursor on."""
    names = list(SEARCHES_BY_NAME)
    name, _, after = cursor.partition("|")
    start = names.index(name) if name in names else 0
    if not cursor:
        yield WalkStep(ledger_entries.report_short_identifier(case), f"{names[0]}|")
    for number, search_name in enumerate(names[start:], start):
        next_cursor = f"{names[number + 1]}|" if number + 1 < len(names) else ""
        for outcomes, step_cursor in SEARCHES_BY_NAME[search_name](estate, case, after):
            if step_cursor == NOT_RESUMABLE_CURSOR:
                yield WalkStep(outcomes, None)
            else:
                yield WalkStep(outcomes, f"{search_name}|{step_cursor}" if step_cursor else next_cursor)
        after = ""
