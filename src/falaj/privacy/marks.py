"""Marks of people who may not be used, put online again: for an online store that was lost and filled anew.

The ledger knows such people by pseudonym only, so whoever may read the keys of rows says who is there, and the platform
says which of them it knows.
"""

from collections.abc import Iterator

from falaj.asof.rows import open_part, rows_of
from falaj.core.errand import Here, errand
from falaj.features.chapters import open_chapter
from falaj.features.erasing import holdings
from falaj.features.stream import Arrival, dataset_of, schema_of
from falaj.privacy.refusing import MOST_ASKED
from falaj.privacy.tables import people_in


@errand
def remark(here: Here) -> int:
    """Put the marks of all who took back a consent or are restricted online again; gives how many people have some.

    Run it after an online store was lost. It reads the keys of every view about people.

    Example:
        falaj privacy remark
    """
    known: set[str] = set()
    for entity, defined in people_in(here):
        for arrival in {dataset_of(one.stream): one for one in holdings(here, entity)}.values():
            known |= set(_keys(here, arrival, defined.subject))
    people = sorted(known)
    return sum(
        here.privacy.bar(tuple(people[start : start + MOST_ASKED])) for start in range(0, len(people), MOST_ASKED)
    )


def _keys(here: Here, arrival: Arrival, subject: str) -> Iterator[str]:
    """Who has rows in a view."""
    import pyarrow as pa
    import pyarrow.compute as pc

    here.features.rows(arrival.view)  # what was pushed is settled first
    about: Arrival = here.features.about(arrival.view)
    schema = schema_of(about.definition, about.entity)
    for chapter in about.stream.chapters:
        with open_chapter(here, chapter, ("",), about) as parts:
            for part in parts:
                table = rows_of(open_part(part, [one.type for one in schema.keys]), schema.keys, [])
                yield from pc.unique(table.column(subject).cast(pa.string())).drop_null().to_pylist()
