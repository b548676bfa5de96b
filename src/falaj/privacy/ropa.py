"""The record of processing, made from what the platform holds and what its log says; nobody types it.

Everything under a regime: which data of which kind, for what, who may reach it, where it lies, where it may go, how
long it stays, what was really done with it in a time. The printable documents are built in ropa_document.py.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from falaj.audit.records import LogEntry, LogEntryPage
from falaj.core.client_command import Client, client_command
from falaj.core.data import dataclass
from falaj.core.documents import IssuingOrganisation, render_document
from falaj.core.errors import NotFound
from falaj.core.label import CLASS_NAMES, Label
from falaj.core.ref import Ref
from falaj.features.person_keys import list_retained
from falaj.govern.applicability import find_common_exemption, find_controller_jurisdiction
from falaj.govern.legal_periods import RegimeExemption
from falaj.govern.people_records import AccountPerson
from falaj.govern.records import GrantState, KeepingDuty, LegalRegime, LegalZone
from falaj.privacy.duty_clocks import NOT_APPLICABLE
from falaj.privacy.input_checks import parse_moment
from falaj.privacy.person_tables import iterate_person_entities, iterate_versions
from falaj.privacy.records import LANGUAGES, DataBreach
from falaj.privacy.ropa_document import build_ropa_document
from falaj.privacy.service_base import compute_digest
from falaj.services import list_actions
from falaj.store.codec import to_plain

_VERSION_KINDS = ("dataset", "model")
_DATA_FAMILY = "work"  # the family of data and models in the table of roles


@dataclass(frozen=True, slots=True)
class ProcessingRecord:
    """The record of processing that was written."""

    COLUMNS: ClassVar = ("regime", "folder", "things", "purposes", "acts")

    regime: str
    folder: str
    """Where it was written; empty where nobody named a folder."""
    things: int
    purposes: int
    acts: int
    digest: str
    """Of ropa.json."""
    record: Mapping[str, Any]
    """What is in it."""


@client_command
def ropa(
    client: Client,
    regime: Annotated[str, "which regime, for example AE-PDPL"],
    out: Annotated[str, "a folder for ropa.json, ropa.ar.html and ropa.en.html; without one it is only shown"] = "",
    since: Annotated[str, "what was done from then on, with offset: 2026-01-01T00:00:00+04:00; all when empty"] = "",
) -> ProcessingRecord:
    """Write the record of processing of a regime, from live metadata and the log. Who runs it must see the log.

    The HTML files are print-ready: a browser's "save as PDF" makes the paper.

    Example:
        falaj privacy ropa AE-PDPL --out record
    """
    regimes_by_name: Mapping[str, LegalRegime] = {
        name: listed_item for listed_item in client.zones.regimes() for name in (listed_item.id, *listed_item.aliases)
    }
    if regime not in regimes_by_name:
        raise NotFound(f"no profile describes the regime {regime[:60]!r}", "falaj zones regimes lists them")
    law = regimes_by_name[regime]
    since_at = parse_moment(since, float("inf")) if since else 0.0
    record: dict[str, Any] = to_plain(_build_record(client, law, since_at))
    record_text = json.dumps(record, ensure_ascii=False, indent=1, sort_keys=True)
    if out:
        _write_record(
            Path(out), record_text, record | {"since": since_at, "until": time.time()}, client.privacy.organisation()
        )
    acts = sum(listed_item["acts"] for listed_item in record["activity"])
    counts = len(record["things"]), len(record["purposes"]), acts
    return ProcessingRecord(law.id, out, *counts, compute_digest(record_text.encode()), record)


def _write_record(folder: Path, text: str, record: Mapping[str, Any], organisation: IssuingOrganisation) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ropa.json").write_text(text, encoding="utf-8")
    for language in LANGUAGES:
        document = build_ropa_document(record, organisation, language)
        (folder / f"ropa.{language}.html").write_text(render_document(document), encoding="utf-8")


def _build_record(client: Client, regime: LegalRegime, since: float) -> dict[str, Any]:
    resources, exempt = _divide_things(client, regime)
    people = client.people.list()
    grants = [listed_item for listed_item in client.zones.grants() if listed_item.grant.regime == regime.id]
    purposes = [to_plain(listed_item) for listed_item in client.privacy.purposes() if regime.id in listed_item.regimes]
    used_purposes = {purpose for resource_facts in resources.values() for purpose in resource_facts["purposes"]} - {"*"}
    return {
        "regime": {
            "id": regime.id,
            "version": regime.version,
            "title": regime.title,
            "status": regime.status,
            "checked": regime.checked,
            "sources": regime.sources,
            "review_by": regime.review_by,
            "reviewed_by": regime.reviewed_by,
            "reviewed_on": regime.reviewed_on,
            "retention": describe_retention(regime),
        },
        "officers": sorted(listed_item.name for listed_item in people if "dpo" in listed_item.roles),
        "purposes": purposes,
        "unregistered_purposes": sorted(used_purposes - {purpose["name"] for purpose in purposes}),
        "people": [
            {"name": str(ref), "about": entity_definition.about}
            for ref, entity_definition in iterate_person_entities(client)
        ],
        "recipients": find_recipients(client.zones.list(), grants, resources),
        "things": [{"name": name, **row} for name, row in sorted(resources.items())],
        "not_applicable": [
            {
                "name": name,
                "article": exemption.source.article,
                "because": exemption.because,
                "because_ar": exemption.because_ar,
            }
            for name, exemption in sorted(exempt.items())
        ],
        "access": [
            {
                "name": person.name,
                "kind": person.kind,
                "roles": person.roles,
                "projects": person.projects,
                "jurisdiction": person.jurisdiction,
            }
            for person in _find_readers(client, people, resources)
        ],
        "transfers": [to_plain(grant) for grant in grants],
        "activity": list(_count_activity(client, resources, since)),
        "assessments": [to_plain(listed_item) for listed_item in client.privacy.assessments()],
        "breaches": [
            to_plain(breach) for breach in client.privacy.breaches() if regime.id in _list_applying_regimes(breach)
        ],
    }


def _list_applying_regimes(breach: DataBreach) -> set[str]:
    """Return the regimes that apply to a breach."""
    return {clock.regime for clock in breach.clocks if clock.state != NOT_APPLICABLE}


def find_recipients(
    zones: Iterable[LegalZone], grants: Iterable[GrantState], resources: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """List who receives the data: operators of the zones where it lies, and receivers of transfers in force."""
    zones_by_id = {zone.id: zone for zone in zones}
    used_zones = sorted({zone for row in resources.values() for zone in row["zones"]} & zones_by_id.keys())
    operators = [
        {
            "name": zones_by_id[zone].operator.name,
            "role": "processor",
            "place": f"{zone} ({zones_by_id[zone].jurisdiction})",
            "until": 0.0,
        }
        for zone in used_zones
        if zones_by_id[zone].operator.name
    ]
    receivers = []
    for state in grants:
        if state.state == "active":
            target_zone = zones_by_id.get(state.grant.dst)
            name = target_zone.operator.name if target_zone and target_zone.operator.name else state.grant.dst
            receivers.append({"name": name, "role": "receiver", "place": state.grant.dst, "until": state.grant.expires})
    return operators + receivers


def describe_retention(regime: LegalRegime) -> dict[str, Any] | None:
    """Return the shortest time a law keeps data, as the printed record needs it."""
    period = regime.retention
    if period is None:
        return None
    return {"count": period.count, "unit": period.unit, "starts": period.starts, "article": period.source.article}


def _divide_things(here: Client, law: LegalRegime) -> tuple[dict[str, dict[str, Any]], dict[str, RegimeExemption]]:
    """Return what is under a law by name, and what has it in its label though it does not apply, with the exemption.

    Each version is decided by itself: a name whose law applies to one version only is under it, with that version.
    """
    zones = {zone.id: zone for zone in here.zones.list()}
    applying: dict[str, tuple[dict[str, Any], Label]] = {}
    exempt: dict[str, RegimeExemption] = {}
    for ref, label, places, duties in _labels(here):
        if law.id in label.regimes:
            exemption = find_common_exemption(
                law, label, (find_controller_jurisdiction(zones.get(place)) for place in places)
            )
            if exemption is None:
                _merge_resource(applying, ref, label, places, duties)
            else:
                exempt[str(ref.bare)] = exemption
    things = {name: row for name, (row, _) in applying.items()}
    return things, {name: exemption for name, exemption in exempt.items() if name not in things}


def _labels(here: Client) -> Iterator[tuple[Ref, Label, tuple[str, ...], Iterable[KeepingDuty]]]:
    """Yield every version of data and models and every feature view: label, zones where it lies, duties to keep it."""
    versions = list(iterate_versions(here, *_VERSION_KINDS))
    kept = list_retained(here, [version.ref for version in versions])
    for version in versions:
        columns = version.table.columns if version.table else ()
        categories = frozenset(column.category for column in columns if column.category)
        label = replace(version.label, categories=version.label.categories | categories)
        yield version.ref, label, version.zones, kept[version.ref].duties if version.ref in kept else ()
    for page in _iterate_pages(lambda after: here.features.list(kind="view", after=after)):
        for view in page.items:
            yield view.ref, view.label, (view.zone,), ()


def _find_readers(here: Client, people: Iterable[AccountPerson], things: Iterable[str]) -> list[AccountPerson]:
    """Return the active accounts with a role that reads data, in a project of the data of this record."""
    reading = {row.role for row in here.policy.roles() if "read" in row.allows.get(_DATA_FAMILY, "").split()}
    projects = {Ref.parse(name).project for name in things} | {"*"}
    return [
        person
        for person in people
        if not person.suspended and not reading.isdisjoint(person.roles) and not projects.isdisjoint(person.projects)
    ]


def _merge_resource(
    resources_by_name: dict[str, tuple[dict[str, Any], Label]],
    ref: Ref,
    label: Label,
    zones: tuple[str, ...],
    duties: Iterable[KeepingDuty] = (),
) -> None:
    earlier_facts, earlier_label = resources_by_name.get(
        str(ref.bare), ({"versions": 0, "zones": [], "duties": []}, label)
    )
    joined_label = earlier_label.join(label)
    all_zones = sorted({*earlier_facts["zones"], *zones})
    resources_by_name[str(ref.bare)] = (
        {
            "versions": earlier_facts["versions"] + 1,
            "zones": all_zones,
            "class": CLASS_NAMES[joined_label.classification],
            "categories": sorted(joined_label.categories),
            "purposes": sorted(joined_label.purposes),
            "keep_at_most_s": joined_label.max_retain_s,
            "holds": sorted(joined_label.holds),
            "duties": join_duties([*earlier_facts["duties"], *map(to_plain, duties)]),
        },
        joined_label,
    )


def join_duties(duties: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each law that keeps a version of a thing, with its latest end; 0 while one has no date."""
    ends: dict[tuple[str, str], list[float]] = {}
    for duty in duties:
        ends.setdefault((str(duty["law"]), str(duty["article"])), []).append(float(duty["until"]))
    return [
        {"law": law, "article": article, "until": max(dates) if all(dates) else 0.0}
        for (law, article), dates in sorted(ends.items())
    ]


def _count_activity(client: Client, resources: Mapping[str, Any], since: float) -> Iterator[dict[str, Any]]:
    """Who did what with these things, counted; from the log and nothing else. To look at metadata processes nothing."""
    act_counts: Counter[tuple[str, str, str]] = Counter()
    metadata_actions = {action for action, group in list_actions().items() if group in ("see", "audit")}
    for entry in _iterate_log(client, since):
        if entry.verb in metadata_actions:
            continue
        for name in {str(ref.bare) for ref in (entry.subject, *entry.inputs)} & resources.keys():
            act_counts[name, entry.verb, entry.behalf or entry.actor] += int((entry.body or {}).get("times", 1))
    for (name, operation, actor), act_count in sorted(act_counts.items()):
        yield {"thing": name, "act": operation, "by": actor, "acts": act_count}


def _iterate_log(client: Client, since: float) -> Iterator[LogEntry]:
    cursor = ""
    while True:
        page: LogEntryPage = client.audit.log(since=since, older=cursor, limit=1000)
        yield from page.entries
        cursor = page.older
        if not cursor or not page.entries:
            return


def _iterate_pages(list_page: Any) -> Iterator[Any]:
    after = ""
    while True:
        page = list_page(after)
        yield page
        after = page.next
        if not after:
            return
