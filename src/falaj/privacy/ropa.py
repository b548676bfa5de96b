"""The record of processing, made from what the platform holds and what its log says; nobody types it.

Everything under a regime: which data of which kind, for what, who may reach it, where it lies, where it may go, how
long it stays, what was really done with it in a time. The words come from words.toml, in Arabic and in English.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from falaj.audit.records import Entries, Entry
from falaj.core.data import dataclass
from falaj.core.errand import Here, errand
from falaj.core.errors import NotFound
from falaj.core.label import CLASS_NAMES, Label
from falaj.core.ref import Ref
from falaj.desks import actions
from falaj.govern.records import Regime
from falaj.privacy.decide import moment_of
from falaj.privacy.records import LANGUAGES
from falaj.privacy.shelf import digest_of
from falaj.store.codec import to_plain

WORDS = Path(__file__).with_name("words.toml")
_KINDS = ("dataset", "model")


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
    out: Annotated[str, "a folder for ropa.json, ropa.ar.md and ropa.en.md; without one it is only shown"] = "",
    since: Annotated[str, "what was done from then on, with offset: 2026-01-01T00:00:00+04:00; all when empty"] = "",
) -> Ropa:
    """Write the record of processing of a regime, from live metadata and the log. Who runs it must see the log.

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
        _write(Path(out), text, record)
    acts = sum(one["acts"] for one in record["activity"])
    counts = len(record["things"]), len(record["purposes"]), acts
    return Ropa(law.id, out, *counts, digest_of(text.encode()), record)


def _write(folder: Path, text: str, record: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ropa.json").write_text(text, encoding="utf-8")
    words = tomllib.loads(WORDS.read_text(encoding="utf-8"))
    for language in LANGUAGES:
        (folder / f"ropa.{language}.md").write_text(_page(record, words, language), encoding="utf-8")


def _record(here: Here, law: Regime, since: float) -> dict[str, Any]:
    things = {name: told for name, told, label in _things(here) if law.id in label.regimes}
    people = here.people.list()
    return {
        "regime": {"id": law.id, "version": law.version, "title": law.title, "status": law.status,
                   "checked": law.checked, "sources": law.sources, "review_by": law.review_by},
        "officers": sorted(one.name for one in people if "dpo" in one.roles),
        "purposes": [to_plain(one) for one in here.privacy.purposes() if law.id in one.regimes],
        "things": [{"name": name, **told} for name, told in sorted(things.items())],
        "access": [{"name": one.name, "kind": one.kind, "roles": one.roles, "projects": one.projects,
                    "jurisdiction": one.jurisdiction} for one in people if not one.suspended],
        "transfers": [to_plain(one) for one in here.zones.grants() if one.grant.regime == law.id],
        "activity": list(_activity(here, things, since)),
        "assessments": [to_plain(one) for one in here.privacy.assessments()],
        "breaches": [to_plain(one) for one in here.privacy.breaches() if law.id in {c.regime for c in one.clocks}],
    }  # fmt: skip


def _things(here: Here) -> Iterator[tuple[str, dict[str, Any], Label]]:
    """Everything with a label, by name: what it is, for what, where, how long."""
    found: dict[str, tuple[dict[str, Any], Label]] = {}
    for kind in _KINDS:
        for page in _pages(lambda after, kind=kind: here.catalog.list(kind=kind, after=after)):
            for one in page.versions:
                _join(found, one.ref, one.label, one.zones)
    for page in _pages(lambda after: here.features.list(kind="view", after=after)):
        for one in page.items:
            _join(found, one.ref, one.label, (one.zone,))
    for name, (told, label) in found.items():
        yield name, told, label


def _join(found: dict[str, tuple[dict[str, Any], Label]], ref: Ref, label: Label, zones: tuple[str, ...]) -> None:
    told, before = found.get(str(ref.bare), ({"versions": 0, "zones": []}, label))
    whole = before.join(label)
    where = sorted({*told["zones"], *zones})
    found[str(ref.bare)] = (
        {
            "versions": told["versions"] + 1, "zones": where, "class": CLASS_NAMES[whole.classification],
            "categories": sorted(whole.categories), "purposes": sorted(whole.purposes),
            "keep_at_least_s": whole.min_retain_s, "keep_at_most_s": whole.max_retain_s, "holds": sorted(whole.holds),
        },
        whole,
    )  # fmt: skip


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


def _page(record: Mapping[str, Any], words: Mapping[str, Any], language: str) -> str:
    """The record as people read it."""
    said = {name: text[language] for name, text in words.items() if isinstance(text, dict)}
    law = record["regime"]
    lines = [
        f"# {said['title']}: {law['id']}", "", law["title"], "",
        f"{said['read']}: {law['checked']}, {law['status']}; {said['review']}: {law['review_by']}", "",
        f"{said['officers']}: {', '.join(record['officers']) or said['none']}", "",
    ]  # fmt: skip
    for name in ("purposes", "things", "access", "transfers", "activity", "assessments", "breaches"):
        lines += [f"## {said[name]}", "", *_rows(record[name], said, language), ""]
    lines += [f"## {said['erasure']}", "", said["erasure_text"], "", f"## {said['security']}", ""]
    return "\n".join([*lines, said["security_text"], "", f"> {said['says']}", ""])


def _rows(rows: list[dict[str, Any]], said: Mapping[str, str], language: str) -> list[str]:
    if not rows:
        return [said["none"]]
    found = []
    for row in rows:
        shown = {**row, **({"text": row["text"].get(language, "")} if "text" in row else {})}
        cells = [f"{name}: {_cell(value)}" for name, value in shown.items() if value not in ("", [], (), {}, None)]
        found.append(f"- {'; '.join(cells)}")
    return found


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(one) for one in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_cell(one)}" for name, one in value.items() if one not in ("", [], (), {}, None))
    return str(value).replace("\n", " ")
