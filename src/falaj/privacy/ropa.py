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

from falaj.audit.records import Entries, Entry
from falaj.core.data import dataclass
from falaj.core.documents import Organisation, render_document
from falaj.core.errand import Here, errand
from falaj.core.errors import NotFound
from falaj.core.label import CLASS_NAMES, Label
from falaj.core.ref import Ref
from falaj.desks import actions
from falaj.features.persons import kept_by_law
from falaj.govern.applicability import controller_of, find_common_exemption
from falaj.govern.legal_periods import Exemption
from falaj.govern.people_records import Person
from falaj.govern.records import GrantState, KeepingDuty, Regime, Zone
from falaj.privacy.clocks import NOT_APPLICABLE
from falaj.privacy.decide import moment_of
from falaj.privacy.records import LANGUAGES, Breach
from falaj.privacy.ropa_document import build_ropa_document
from falaj.privacy.shelf import digest_of
from falaj.privacy.tables import datasets_of, people_in
from falaj.store.codec import to_plain

_KINDS = ("dataset", "model")
_DATA_FAMILY = "work"  # the family of data and models in the table of roles


@dataclass(frozen=True, slots=True)
class Ropa:
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


@errand
def ropa(
    here: Here,
    regime: Annotated[str, "which regime, for example AE-PDPL"],
    out: Annotated[str, "a folder for ropa.json, ropa.ar.html and ropa.en.html; without one it is only shown"] = "",
    since: Annotated[str, "what was done from then on, with offset: 2026-01-01T00:00:00+04:00; all when empty"] = "",
) -> Ropa:
    """Write the record of processing of a regime, from live metadata and the log. Who runs it must see the log.

    The HTML files are print-ready: a browser's "save as PDF" makes the paper.

    Example:
        falaj privacy ropa AE-PDPL --out record
    """
    known: Mapping[str, Regime] = {name: one for one in here.zones.regimes() for name in (one.id, *one.aliases)}
    if regime not in known:
        raise NotFound(f"no profile describes the regime {regime[:60]!r}", "falaj zones regimes lists them")
    law = known[regime]
    begin = moment_of(since, float("inf")) if since else 0.0
    record: dict[str, Any] = to_plain(_record(here, law, begin))
    text = json.dumps(record, ensure_ascii=False, indent=1, sort_keys=True)
    if out:
        _write(Path(out), text, record | {"since": begin, "until": time.time()}, here.privacy.organisation())
    acts = sum(one["acts"] for one in record["activity"])
    counts = len(record["things"]), len(record["purposes"]), acts
    return Ropa(law.id, out, *counts, digest_of(text.encode()), record)


def _write(folder: Path, text: str, record: Mapping[str, Any], organisation: Organisation) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ropa.json").write_text(text, encoding="utf-8")
    for language in LANGUAGES:
        document = build_ropa_document(record, organisation, language)
        (folder / f"ropa.{language}.html").write_text(render_document(document), encoding="utf-8")


def _record(here: Here, law: Regime, since: float) -> dict[str, Any]:
    things, exempt = _divide_things(here, law)
    people = here.people.list()
    grants = [one for one in here.zones.grants() if one.grant.regime == law.id]
    purposes = [to_plain(one) for one in here.privacy.purposes() if law.id in one.regimes]
    used = {purpose for told in things.values() for purpose in told["purposes"]} - {"*"}
    return {
        "regime": {"id": law.id, "version": law.version, "title": law.title, "status": law.status,
                   "checked": law.checked, "sources": law.sources, "review_by": law.review_by,
                   "reviewed_by": law.reviewed_by, "reviewed_on": law.reviewed_on,
                   "retention": describe_retention(law)},
        "officers": sorted(one.name for one in people if "dpo" in one.roles),
        "purposes": purposes,
        "unregistered_purposes": sorted(used - {purpose["name"] for purpose in purposes}),
        "people": [{"name": str(ref), "about": defined.about} for ref, defined in people_in(here)],
        "recipients": find_recipients(here.zones.list(), grants, things),
        "things": [{"name": name, **row} for name, row in sorted(things.items())],
        "not_applicable": [
            {"name": name, "article": exemption.source.article, "because": exemption.because,
             "because_ar": exemption.because_ar}
            for name, exemption in sorted(exempt.items())
        ],
        "access": [{"name": person.name, "kind": person.kind, "roles": person.roles, "projects": person.projects,
                    "jurisdiction": person.jurisdiction} for person in _find_readers(here, people, things)],
        "transfers": [to_plain(grant) for grant in grants],
        "activity": list(_activity(here, things, since)),
        "assessments": [to_plain(one) for one in here.privacy.assessments()],
        "breaches": [to_plain(breach) for breach in here.privacy.breaches() if law.id in _applying(breach)],
    }  # fmt: skip


def _applying(breach: Breach) -> set[str]:
    """Return the regimes that apply to a breach."""
    return {clock.regime for clock in breach.clocks if clock.state != NOT_APPLICABLE}


def find_recipients(
    zones: Iterable[Zone], grants: Iterable[GrantState], things: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """List who receives the data: operators of the zones where it lies, and receivers of transfers in force."""
    places = {zone.id: zone for zone in zones}
    used = sorted({zone for row in things.values() for zone in row["zones"]} & places.keys())
    operators = [
        {"name": places[zone].operator.name, "role": "processor", "place": f"{zone} ({places[zone].jurisdiction})",
         "until": 0.0}
        for zone in used if places[zone].operator.name
    ]  # fmt: skip
    receivers = []
    for state in grants:
        if state.state == "active":
            place = places.get(state.grant.dst)
            name = place.operator.name if place and place.operator.name else state.grant.dst
            receivers.append({"name": name, "role": "receiver", "place": state.grant.dst, "until": state.grant.expires})
    return operators + receivers


def describe_retention(law: Regime) -> dict[str, Any] | None:
    """Return the shortest time a law keeps data, as the printed record needs it."""
    period = law.retention
    if period is None:
        return None
    return {"count": period.count, "unit": period.unit, "starts": period.starts, "article": period.source.article}


def _divide_things(here: Here, law: Regime) -> tuple[dict[str, dict[str, Any]], dict[str, Exemption]]:
    """Return what is under a law by name, and what has it in its label though it does not apply, with the exemption.

    Each version is decided by itself: a name whose law applies to one version only is under it, with that version.
    """
    zones = {zone.id: zone for zone in here.zones.list()}
    applying: dict[str, tuple[dict[str, Any], Label]] = {}
    exempt: dict[str, Exemption] = {}
    for ref, label, places, duties in _labels(here):
        if law.id in label.regimes:
            exemption = find_common_exemption(law, label, (controller_of(zones.get(place)) for place in places))
            if exemption is None:
                _join(applying, ref, label, places, duties)
            else:
                exempt[str(ref.bare)] = exemption
    things = {name: row for name, (row, _) in applying.items()}
    return things, {name: exemption for name, exemption in exempt.items() if name not in things}


def _labels(here: Here) -> Iterator[tuple[Ref, Label, tuple[str, ...], Iterable[KeepingDuty]]]:
    """Yield every version of data and models and every feature view: label, zones where it lies, duties to keep it."""
    versions = list(datasets_of(here, *_KINDS))
    kept = kept_by_law(here, [version.ref for version in versions])
    for version in versions:
        columns = version.table.columns if version.table else ()
        categories = frozenset(column.category for column in columns if column.category)
        label = replace(version.label, categories=version.label.categories | categories)
        yield version.ref, label, version.zones, kept[version.ref].duties if version.ref in kept else ()
    for page in _pages(lambda after: here.features.list(kind="view", after=after)):
        for view in page.items:
            yield view.ref, view.label, (view.zone,), ()


def _find_readers(here: Here, people: Iterable[Person], things: Iterable[str]) -> list[Person]:
    """Return the active accounts with a role that reads data, in a project of the data of this record."""
    reading = {row.role for row in here.policy.roles() if "read" in row.allows.get(_DATA_FAMILY, "").split()}
    projects = {Ref.parse(name).project for name in things} | {"*"}
    return [
        person
        for person in people
        if not person.suspended and not reading.isdisjoint(person.roles) and not projects.isdisjoint(person.projects)
    ]


def _join(
    found: dict[str, tuple[dict[str, Any], Label]],
    ref: Ref,
    label: Label,
    zones: tuple[str, ...],
    duties: Iterable[KeepingDuty] = (),
) -> None:
    told, before = found.get(str(ref.bare), ({"versions": 0, "zones": [], "duties": []}, label))
    whole = before.join(label)
    where = sorted({*told["zones"], *zones})
    found[str(ref.bare)] = (
        {
            "versions": told["versions"] + 1, "zones": where, "class": CLASS_NAMES[whole.classification],
            "categories": sorted(whole.categories), "purposes": sorted(whole.purposes),
            "keep_at_most_s": whole.max_retain_s, "holds": sorted(whole.holds),
            "duties": join_duties([*told["duties"], *map(to_plain, duties)]),
        },
        whole,
    )  # fmt: skip


def join_duties(duties: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each law that keeps a version of a thing, with its latest end; 0 while one has no date."""
    ends: dict[tuple[str, str], list[float]] = {}
    for duty in duties:
        ends.setdefault((str(duty["law"]), str(duty["article"])), []).append(float(duty["until"]))
    return [
        {"law": law, "article": article, "until": max(dates) if all(dates) else 0.0}
        for (law, article), dates in sorted(ends.items())
    ]


def _activity(here: Here, things: Mapping[str, Any], since: float) -> Iterator[dict[str, Any]]:
    """Who did what with these things, counted; from the log and nothing else. To look at metadata processes nothing."""
    counted: Counter[tuple[str, str, str]] = Counter()
    looks = {action for action, group in actions().items() if group in ("see", "audit")}
    for entry in _log(here, since):
        if entry.verb in looks:
            continue
        for name in {str(ref.bare) for ref in (entry.subject, *entry.inputs)} & things.keys():
            counted[name, entry.verb, entry.behalf or entry.actor] += int((entry.body or {}).get("times", 1))
    for (name, verb, actor), acts in sorted(counted.items()):
        yield {"thing": name, "act": verb, "by": actor, "acts": acts}


def _log(here: Here, since: float) -> Iterator[Entry]:
    older = ""
    while True:
        page: Entries = here.audit.log(since=since, older=older, limit=1000)
        yield from page.entries
        older = page.older
        if not older or not page.entries:
            return


def _pages(ask: Any) -> Iterator[Any]:
    after = ""
    while True:
        page = ask(after)
        yield page
        after = page.next
        if not after:
            return
