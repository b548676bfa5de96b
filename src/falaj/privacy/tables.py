"""Tables that name people: datasets with a column that is a key of people or is marked personal, less one person.

What features made is taken care of by `falaj features erase`; this is for the rest: what rows were read from, and what
somebody published by hand.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import field

from falaj.asof.records import Field
from falaj.asof.sealed import NAME_BYTES
from falaj.catalog.records import Version, VersionPage
from falaj.core.data import dataclass
from falaj.core.errand import Here
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.features.case import Case
from falaj.features.erasing import clear_set
from falaj.features.persons import versions_of
from falaj.features.records import DefinedPage, EntityDef
from falaj.features.rewriting import Person
from falaj.store.codec import from_plain


@dataclass(frozen=True, slots=True)
class Cleared:
    """What became of tables."""

    removed: set[Ref] = field(default_factory=set)
    made: set[Ref] = field(default_factory=set)
    kept: dict[Ref, str] = field(default_factory=dict)
    retained: set[Ref] = field(default_factory=set)
    """Those of `kept` that have the person and that a duty keeps."""
    models: set[Ref] = field(default_factory=set)


def datasets_of(here: Here, *kinds: str) -> Iterator[Version]:
    """Yield every live version of every dataset (or of these kinds) that the caller may see."""
    for kind in kinds or ("dataset",):
        after = ""
        while True:
            page: VersionPage = here.catalog.list(kind=kind, after=after)
            for newest in page.versions:
                yield from versions_of(here, newest.ref.bare)
            after = page.next
            if not after:
                break


def people_in(here: Here) -> Iterator[tuple[Ref, EntityDef]]:
    """Every entity that is about people."""
    after = ""
    while True:
        page: DefinedPage = here.features.list(kind="entity", after=after)
        for one in page.items:
            defined: EntityDef = from_plain(EntityDef, here.features.show(one.ref).definition)
            if defined.subject:
                yield one.ref.bare, defined
        after = page.next
        if not after:
            return


def keys_of_people(here: Here) -> set[str]:
    """What the keys are called that name people."""
    return keys_in(people_in(here))


def keys_in(people: Iterable[tuple[Ref, EntityDef]]) -> set[str]:
    """The same of entities that are known."""
    return {defined.subject for _, defined in people}


def naming(version: Version, keys: set[str]) -> list[str]:
    """The columns of a table that may name people."""
    columns = version.table.columns if version.table else ()
    return [one.name for one in columns if one.name in keys or one.category == "personal"]


def clear_tables(
    here: Here, keys: set[str], who: tuple[str, str], reason: str, done: set[Ref], *, dry: bool = False
) -> Cleared:
    """Put every version that holds the person aside for one without them, but of names that are `done` already.

    `keys` are called what names people; `who` is the identifier and the pseudonym here."""
    cleared, (subject, person) = Cleared(), who
    wanted: dict[tuple[Ref, str], None] = {}
    for version in datasets_of(here):
        if version.ref.bare not in done:
            columns = naming(version, keys)
            wanted |= {(version.ref.bare, column): None for column in columns}
            if columns and version.table and version.table.format != "parquet":
                form = version.table.format or "no table that can be read"
                cleared.kept[version.ref] = f"it names people and is {form}: it is searched by value"
    for name, column in wanted:
        key = Field(column, "string")
        whom = Person(EntityDef("privacy/person", (key,), column), key, subject)
        case = Case(here, Ref("entity", "privacy", "person"), whom, {name: person[: 2 * NAME_BYTES]}, reason, dry)
        with suppress(Invalid):  # a column that cannot be compared with a text names nobody by it
            clear_set(case, name, each=True)
        add_case(cleared, case)
    return cleared


def add_case(cleared: Cleared, case: Case) -> None:
    """Add what one erasure from tables took, made and had to keep."""
    cleared.removed.update(case.removed)
    cleared.made.update(case.made)
    cleared.retained.update(ref for ref, stays in case.kept.items() if stays.duties)
    cleared.kept.update({ref: stays.why for ref, stays in case.kept.items()})
    affected = {Ref.parse(one) for ref in case.removed for one in case.impact(ref).affected}
    cleared.models.update(one for one in affected if one.kind == "model")
