"""Compacting: many small chapters become one, row for row, so that reading stays as quick as after the first.

Which arrival each row came with is kept. What was published before stays in the catalogue, where lineage names it.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from falaj.asof.rows import open_part, rows_of
from falaj.core.errand import Here
from falaj.core.errors import Stale
from falaj.core.ref import Ref
from falaj.features.chapters import open_chapter
from falaj.features.settling import batch_of, publish_rows
from falaj.features.stream import MANY_CHAPTERS, Arrival, Chapter, adjacent, schema_of


def compact_view(here: Here, view: Ref, most: int = MANY_CHAPTERS) -> int:
    """Merge chapters until there are no more than `most` that could be one; gives how many are left."""
    about: Arrival = here.features.about(view)
    for group in adjacent(about.stream):
        if len(group) > most:
            # Others may have settled or erased meanwhile: what we published is nobody's then, and the next one tries.
            with suppress(Stale):
                _merge(here, about, group)
    left: Arrival = here.features.about(view)
    return len(left.stream.chapters)


def _merge(here: Here, about: Arrival, group: tuple[Chapter, ...]) -> None:
    made = publish_rows(here, batch_of(here, about, group[0].how), _rows(here, about, group), 0)
    here.features.merge(about.view, tuple(one.generation for one in group), made, dict(made.faces))


def _rows(here: Here, about: Arrival, group: tuple[Chapter, ...]) -> Iterator[Any]:
    schema = schema_of(about.definition, about.entity)
    types, names = [one.type for one in schema.keys], [one.name for one in schema.columns]
    for chapter in group:
        with open_chapter(here, chapter, tuple(schema.faces), about) as parts:
            for part in parts:
                yield rows_of(open_part(part, types), schema.keys, names)
