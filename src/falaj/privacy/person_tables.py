"""Tables that name people: datasets with a column that is a key of people or is marked personal, less one person.

What features made is taken care of by `falaj features erase`; this is for the rest: what rows were read from, and what
somebody published by hand.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import field

from falaj.asof.person_sealing import PSEUDONYM_BYTES
from falaj.asof.records import FeatureField
from falaj.catalog.records import CatalogVersion, VersionPage
from falaj.core.client_command import Client
from falaj.core.data import dataclass
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.features.erasure_case import ErasureCase
from falaj.features.person_erasure import clear_training_set
from falaj.features.person_keys import list_live_versions
from falaj.features.records import DefinitionPage, EntityDef
from falaj.features.row_removal import Person
from falaj.store.codec import from_plain


@dataclass(frozen=True, slots=True)
class ClearedTables:
    """What became of tables."""

    removed: set[Ref] = field(default_factory=set)
    made: set[Ref] = field(default_factory=set)
    kept: dict[Ref, str] = field(default_factory=dict)
    retained: set[Ref] = field(default_factory=set)
    """Those of `kept` that have the person and that a duty keeps."""
    models: set[Ref] = field(default_factory=set)


def iterate_versions(client: Client, *kinds: str) -> Iterator[CatalogVersion]:
    """Yield every live version of every dataset (or of these kinds) that the caller may see."""
    for kind in kinds or ("dataset",):
        after = ""
        while True:
            page: VersionPage = client.catalog.list(kind=kind, after=after)
            for newest in page.versions:
                yield from list_live_versions(client, newest.ref.bare)
            after = page.next
            if not after:
                break


def iterate_person_entities(client: Client) -> Iterator[tuple[Ref, EntityDef]]:
    """Every entity that is about people."""
    after = ""
    while True:
        page: DefinitionPage = client.features.list(kind="entity", after=after)
        for entity_item in page.items:
            entity_definition: EntityDef = from_plain(EntityDef, client.features.show(entity_item.ref).definition)
            if entity_definition.subject:
                yield entity_item.ref.bare, entity_definition
        after = page.next
        if not after:
            return


def find_subject_keys(client: Client) -> set[str]:
    """What the keys are called that name people."""
    return list_subject_keys(iterate_person_entities(client))


def list_subject_keys(people: Iterable[tuple[Ref, EntityDef]]) -> set[str]:
    """The same of entities that are known."""
    return {entity_definition.subject for _, entity_definition in people}


def find_person_columns(version: CatalogVersion, keys: set[str]) -> list[str]:
    """The columns of a table that may name people."""
    columns = version.table.columns if version.table else ()
    return [
        column_item.name for column_item in columns if column_item.name in keys or column_item.category == "personal"
    ]


def clear_tables(
    client: Client,
    keys: set[str],
    subject_and_pseudonym: tuple[str, str],
    reason: str,
    finished_names: set[Ref],
    *,
    dry_run: bool = False,
) -> ClearedTables:
    """Put every version that holds the person aside for one without them, but of names that are `finished_names`
    already.

    `keys` are called what names people; `subject_and_pseudonym` is the identifier and the pseudonym here."""
    cleared, (subject, pseudonym) = ClearedTables(), subject_and_pseudonym
    columns_to_clear: dict[tuple[Ref, str], None] = {}
    for version in iterate_versions(client):
        if version.ref.bare not in finished_names:
            columns = find_person_columns(version, keys)
            columns_to_clear |= {(version.ref.bare, column): None for column in columns}
            if columns and version.table and version.table.format != "parquet":
                format_name = version.table.format or "no table that can be read"
                cleared.kept[version.ref] = f"it names people and is {format_name}: it is searched by value"
    for name, column in columns_to_clear:
        key = FeatureField(column, "string")
        person = Person(EntityDef("privacy/person", (key,), column), key, subject)
        case = ErasureCase(
            client,
            Ref("entity", "privacy", "person"),
            person,
            {name: pseudonym[: 2 * PSEUDONYM_BYTES]},
            reason,
            dry_run,
        )
        with suppress(Invalid):  # a column that cannot be compared with a text names nobody by it
            clear_training_set(case, name, is_each_version=True)
        add_case(cleared, case)
    return cleared


def add_case(cleared: ClearedTables, case: ErasureCase) -> None:
    """Add what one erasure from tables took, made and had to keep."""
    cleared.removed.update(case.removed)
    cleared.made.update(case.made)
    cleared.retained.update(ref for ref, stays in case.kept.items() if stays.duties)
    cleared.kept.update({ref: stays.why for ref, stays in case.kept.items()})
    affected = {Ref.parse(one) for ref in case.removed for one in case.impact(ref).affected}
    cleared.models.update(one for one in affected if one.kind == "model")
