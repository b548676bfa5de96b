"""How far a breach reaches, by lineage and the log; and what holds and retention periods keep."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, ClassVar

from falaj.audit.records import LineageImpact, LogEntryPage
from falaj.catalog.lifecycle_records import KeptVersion
from falaj.catalog.records import CatalogVersion
from falaj.core.client_command import Client, client_command
from falaj.core.data import dataclass
from falaj.core.ref import Ref
from falaj.features.person_keys import list_retained
from falaj.govern.duties import summarize_duties
from falaj.privacy.person_tables import find_person_columns, find_subject_keys, iterate_versions
from falaj.privacy.records import DataBreach
from falaj.store.blob_views import BlobPage, BlobVersionView

READ_OPERATIONS = ("open", "read", "checkout", "copy", "carry", "get", "enter", "logs", "fetch")
"""How acts end by which somebody comes by data."""


@dataclass(frozen=True, slots=True)
class BreachRadius:
    """What a breach may have reached."""

    COLUMNS: ClassVar = ("breach", "affected", "zones", "users", "tables_of_people", "hidden")

    breach: Ref
    affected: tuple[str, ...]
    """What it is about, and everything made from that."""
    zones: tuple[str, ...]
    by_kind: dict[str, int]
    users: dict[str, int]
    """Who came by any of it since it is in the log, and how often."""
    tables_of_people: dict[str, int]
    """Tables among it that name people, and how many rows each has: not more people than that."""
    hidden: int
    """So many more there are that you may not see."""


@dataclass(frozen=True, slots=True)
class RetainedVersion:
    """A version that must be kept, by which laws, why, and until when."""

    COLUMNS: ClassVar = ("ref", "laws", "until", "open_ended", "reasons", "zones")

    ref: Ref
    laws: tuple[str, ...]
    """Regimes with their article, `label`, `legal hold`, `breach`; empty when nothing keeps it and it is over."""
    holds: tuple[str, ...]
    until: float
    """The latest date at which one of them ends; 0 when none has a date."""
    open_ended: bool
    """True when one of them has no date: a hold, a breach, or a period whose first day is not recorded."""
    reasons: tuple[str, ...]
    over: bool
    """True when it is kept longer than its label lets it be."""
    zones: tuple[str, ...]


@client_command
def radius(client: Client, breach: Annotated[Ref, "which breach"]) -> BreachRadius:
    """Say what a breach reaches: what was made from the data, where it lies, who used it. Needs the log.

    Example:
        falaj privacy radius breach:privacy/0199d2f0
    """
    breach_record: DataBreach = client.privacy.breach(breach)
    impacts: list[LineageImpact] = [client.audit.impact(listed_item) for listed_item in breach_record.about]
    resource_names = sorted(
        {
            *map(str, breach_record.about),
            *(listed_item for impact_item in impacts for listed_item in impact_item.affected),
        }
    )
    users: Counter[str] = Counter()
    for resource_name in resource_names:
        users.update(_count_users(client, resource_name))
    keys = find_subject_keys(client)
    tables = {
        str(listed_item.ref): (listed_item.table.rows or 0) if listed_item.table else 0
        for listed_item in iterate_versions(client)
        if str(listed_item.ref) in resource_names and find_person_columns(listed_item, keys)
    }
    return BreachRadius(
        breach,
        tuple(resource_names),
        tuple(sorted({zone for listed_item in impacts for zone in listed_item.zones})),
        dict(Counter(Ref.parse(listed_item).kind for listed_item in resource_names)),
        dict(users.most_common()),
        tables,
        sum(listed_item.hidden for listed_item in impacts),
    )


@client_command
def holds(client: Client) -> tuple[RetainedVersion, ...]:
    """List every version and blob that a law, a legal hold or a contract keeps, until when, and what is kept too long.

    Example:
        falaj privacy holds
    """
    versions: dict[Ref, CatalogVersion | BlobVersionView] = {}
    versions |= {version.ref: version for version in iterate_versions(client, "dataset", "model", "code")}
    versions |= {blob.ref: blob for blob in _list_blobs(client)}
    kept_by_ref = list_retained(client, list(versions))
    holdings = (describe_holding(version, kept_by_ref.get(ref), time.time()) for ref, version in versions.items())
    return tuple(holding for holding in holdings if holding.laws or holding.over)


def _list_blobs(here: Client) -> Iterator[BlobVersionView]:
    """Yield every live version of every blob that the caller may see."""
    after = ""
    while True:
        page: BlobPage = here.store.list(after=after)
        for newest in page.entries:
            yield from _list_versions(here, newest.ref)
        after = page.next
        if not after:
            return


def _list_versions(here: Client, blob: Ref) -> Iterator[BlobVersionView]:
    after = ""
    while True:
        page: BlobPage = here.store.list(project=blob.project, name=blob.name, after=after)
        yield from page.entries
        after = page.next
        if not after:
            return


def describe_holding(
    version: CatalogVersion | BlobVersionView, kept_version: KeptVersion | None, now: float
) -> RetainedVersion:
    """Join what is known of a version with the duties that keep it."""
    duties = kept_version.duties if kept_version else ()
    max_retain_s = version.label.max_retain_s
    retention = summarize_duties(duties)
    laws = tuple(dict.fromkeys(" ".join(filter(None, (duty.law, duty.article))) for duty in duties))
    return RetainedVersion(
        version.ref,
        laws,
        tuple(sorted(version.label.holds)),
        retention.until,
        retention.open_ended,
        tuple(duty.reason for duty in duties),
        max_retain_s is not None and version.made_at + max_retain_s < now,
        version.zones,
    )


def _count_users(client: Client, resource_name: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    cursor = ""
    while True:
        page: LogEntryPage = client.audit.log(about=resource_name, older=cursor, limit=1000)
        for entry in page.entries:
            if entry.verb.rpartition(".")[2] in READ_OPERATIONS:
                counts[entry.behalf or entry.actor] += int((entry.body or {}).get("times", 1))
        cursor = page.older
        if not cursor or not page.entries:
            return counts
