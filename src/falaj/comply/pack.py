"""Evidence packs by regime: the log's own pack, and beside it what the desks know, judged control by control.

The log's part is made and signed by the platform (audit/pack.py) and goes through here unchanged. What is put beside it
is listed in `evidence.json`, bound to that part, and its digest is put into the log by `audit attest`: the proof of
that event, under a checkpoint the log signed, is the signature. So nobody has the log's key sign what it cannot know,
and whoever put it together stands in the log with their name.
"""

import hashlib
import json
import mimetypes
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from falaj.audit import note
from falaj.comply import summary
from falaj.comply.enclosing import MAX_DOCUMENT_BYTES, PackedDocument, read_enclosed
from falaj.comply.gather import MISSING, SOURCES, Ground, Rows, plain
from falaj.comply.mapping import control_map, judge_controls
from falaj.comply.period_facts import AttachedDocument, PeriodFacts
from falaj.comply.records import (
    ATTESTED,
    EXCEPTIONS,
    NOT_APPLICABLE,
    NOT_SHOWN,
    OPERATING,
    ControlMap,
    Evidence,
    Judged,
)
from falaj.comply.summary_document import SummaryFacts, build_summary_document
from falaj.comply.tally import Tally, unzipped, zip_stream
from falaj.core.data import dataclass
from falaj.core.documents import Organisation, render_documents
from falaj.core.errand import Here
from falaj.core.errors import FalajError
from falaj.desks import actions
from falaj.govern.records import Regime
from falaj.store.codec import to_plain, to_stable_json

FORMAT = "falaj-regime/1"
TRANSFERS = ("store.copy", "catalog.copy", "catalog.carry", "serve.pack", "zones.lower", "zones.revoke")
NEVER = "9999-12-31T00:00:00+00:00"


@dataclass
class Case:
    """One pack on its way."""

    here: Here
    asked: ControlMap
    since: float
    until: float
    zone: str = ""
    enclosed: Sequence[PackedDocument] = ()
    checkpoints: tuple[float, ...] = ()
    log_digest: str = ""
    origin: str = ""
    digest: str = ""
    controls: tuple[Judged, ...] = ()
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(self.since, self.until)


def build(
    here: Here,
    regime: str,
    out: Path,
    since: float = 0.0,
    until: float = 0.0,
    zone: str = "",
    enclose: Iterable[str] = (),
) -> Evidence:
    """Make the pack of a period; `until` 0 is now. The same period of the same platform gives the same bytes."""
    asked = control_map(regime)
    case = Case(here, asked, since, _end(here, until, zone), zone, read_enclosed(enclose))
    size, partial = 0, out.with_name(out.name + ".part")
    with partial.open("wb") as file:
        for chunk in zip_stream(_entries(case)):
            size += file.write(chunk)
    partial.replace(out)
    return Evidence(
        asked.id, str(out), size, case.digest, case.tally.events, since, case.until,
        _controls_with(case, OPERATING), _controls_with(case, EXCEPTIONS), _controls_with(case, ATTESTED),
        _controls_with(case, NOT_SHOWN), _controls_with(case, NOT_APPLICABLE),
        case.controls,
    )  # fmt: skip


def _controls_with(case: Case, status: str) -> tuple[str, ...]:
    return tuple(control.id for control in case.controls if control.status == status)


def _end(here: Here, until: float, zone: str) -> float:
    """A moment that is over: the asked one, or the newest checkpoint when the asked one is still to come."""
    newest = here.audit.seal(zone=zone)
    return min(until, float(newest.at)) if until else float(newest.at)


def _entries(case: Case) -> Iterator[tuple[str, bytes]]:
    """The log's part as it comes, then the evidence, which has by then seen every event of it."""
    stream = case.here.audit.export(since=case.since, until=case.until, zone=case.zone)
    for name, data in unzipped(stream):
        if name.startswith("events/") and name.endswith(".jsonl"):
            case.tally.take(data)
        elif name == "checkpoints.jsonl":
            case.checkpoints = tuple(note.parse(json.loads(line)).at for line in data.splitlines())
        elif name == "manifest.json":
            case.log_digest, case.origin = hashlib.sha256(data).hexdigest(), json.loads(data)["origin"]
        yield name, data
    made: dict[str, dict[str, str | int]] = {}
    for name, data in _evidence(case):
        made[f"evidence/{name}"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        yield f"evidence/{name}", data
    about = f"{case.asked.id}, {summary.day(case.since)} to {summary.day(case.until)}"
    told = _json({"about": about, "files": made, "format": FORMAT, "log": case.log_digest, "regime": case.asked.id})
    yield "evidence.json", told
    case.digest = f"sha256:{hashlib.sha256(told).hexdigest()}"
    proof = case.here.audit.attest(case.digest, f"evidence: {about}", zone=case.zone)
    yield "evidence.proof.json", _json(to_plain(proof))


def _evidence(case: Case) -> Iterator[tuple[str, bytes]]:
    since = case.since or case.tally.first_at  # a log that begins after the period's start shows as a gap
    logged = _logged(case.tally)
    promoted = {row["subject"].partition("@")[0] for row in logged["promotions.jsonl"] or ()}
    ground = Ground(case.here, period=(since, case.until), promoted=frozenset(promoted))
    files: dict[str, Rows | None] = {name: ground.rows(name) for name in SOURCES} | logged
    files["ropa.json"] = _ropa(case, ground)
    files["access.jsonl"] = _access(files, case.tally)
    stored = list(_documents(case, ground, files["documents.jsonl"] or []))
    documents = {each.file: each.data for each in (*stored, *case.enclosed)}
    _name_removed(ground, files["grants.jsonl"] or [], files["documents.jsonl"])
    attached = tuple(each.attached for each in (*stored, *case.enclosed) if each.attached is not None)
    files["attached.jsonl"] = [to_plain(document) for document in attached]
    facts = PeriodFacts(
        case.asked.id, files, since, case.until, ground.missing, case.checkpoints, attached, case.tally.first_at
    )
    case.controls = judge_controls(case.asked, facts)
    yield "controls.json", to_stable_json({"controls": case.controls, "map": case.asked})
    yield "acts.json", _json({"acts": case.tally.acts(), "events": case.tally.events})
    for name, rows in sorted(files.items()):
        if rows is not None:
            yield name, _written(name, rows)
    yield "missing.json", _json(ground.missing)
    yield from sorted(documents.items())
    yield from _summaries(case, ground, files)


def _documents(case: Case, ground: Ground, rows: Rows) -> Iterator[PackedDocument]:
    """The documents that decisions rested on, by content; one that is too large or may not be read is named missing."""
    for row in rows:
        digest = str(row["digest"]).removeprefix("sha256:")
        suffix = re.sub(r"[^a-z0-9]", "", mimetypes.guess_extension(str(row["media"])) or ".bin")
        name = f"document-{digest[:16]}.{suffix}"
        if int(row["size_bytes"]) > MAX_DOCUMENT_BYTES:
            ground.missing[name] = (
                f"{row['name']} has more than {MAX_DOCUMENT_BYTES >> 20} MiB: open it at the platform"
            )
            continue
        try:
            data = case.here.approvals.open_document(row["name"]).read()
        except MISSING as error:
            ground.missing[name] = error.message if isinstance(error, FalajError) else "documents cannot be read here"
            continue
        if hashlib.sha256(data).hexdigest() != digest:
            ground.missing[name] = f"{row['name']}: its bytes do not have the digest {row['digest']}"
            continue
        yield PackedDocument(name, data, AttachedDocument(row["kind"], row["name"], row["digest"], row["added_at"]))


def _name_removed(ground: Ground, grants: Rows, kept: Rows | None) -> None:
    """Name as missing what grants rest on by digest and is no longer kept, such as a contract that was removed."""
    if kept is None:
        return
    digests = {row["digest"] for row in kept}
    for row in grants:
        for name, digest in row["grant"]["documents"].items():
            if digest not in digests:
                grant = row["grant"]["id"]
                ground.missing[f"document-{digest.removeprefix('sha256:')[:16]}"] = (
                    f"{name} of the grant {grant} is removed, or the account that makes the pack may not read it"
                )


def _logged(tally: Tally) -> dict[str, Rows | None]:
    """The files that are readings of the log."""
    groups, denied = actions(), tally.rows("guard.deny")
    for row in denied:
        row["transfer"] = groups.get(str(row["body"].get("action"))) == "move"
    moved = [row for row in tally.rows(*TRANSFERS) if row["body"].get("phase", "done") == "done"]
    return {
        "transfers.jsonl": moved,
        "denied.jsonl": denied,
        "promotions.jsonl": tally.rows("catalog.promote", "catalog.rollback"),
        "rotations.jsonl": tally.rows("keys.rotate", "keys.retire", "keys.end"),
        "drills.jsonl": [row for row in tally.rows("store.drill") if "phase" not in row["body"]],
        "backups.jsonl": tally.rows("store.preserve"),
        "gate_changes.jsonl": tally.rows("catalog.require"),
        "monitoring.jsonl": tally.rows("monitor.add", "monitor.remove", "monitor.removed", "serve.add", "serve.remove"),
        "accounts.jsonl": tally.rows(
            *("people.add", "people.change", "people.suspend", "people.remove", "people.revoke", "audit.answer"),
            *("people.code", "people.enroll", "people.enroll-again", "people.reset", "people.trust"),
        ),
    }


def _access(files: Mapping[str, Rows | None], tally: Tally) -> Rows | None:
    """Who has what, when they were last seen in the period, which roles opened no door, and what a review said."""
    people, answers = files.get("people.jsonl"), {row["person"]: row for row in files.get("answers.jsonl") or ()}
    if people is None:
        return None
    seen, used = tally.last_seen(), tally.roles_used()
    return [
        row
        | {"last_used": seen.get(row["name"], 0.0), "answer": answers.get(row["name"])}
        | {"unused_roles": sorted(set(row["roles"]) - used.get(row["name"], set()))}
        for row in people
    ]


def _ropa(case: Case, ground: Ground) -> Rows | None:
    """The record of processing. What was done stands in the log's own part and in acts.json, so it is not asked for."""
    try:
        found: dict[str, Any] = dict(case.here.privacy.ropa(case.asked.id, since=NEVER).record)
    except MISSING as error:
        ground.missing["ropa.json"] = error.message if isinstance(error, FalajError) else "no errand makes one"
        return None
    found.pop("activity", None)
    for name, passing in (("transfers", "state"), ("breaches", "overdue")):
        found[name] = [{key: value for key, value in row.items() if key != passing} for row in found[name]]
    return [found]


def _summaries(case: Case, ground: Ground, files: Mapping[str, Rows | None]) -> Iterator[tuple[str, bytes]]:
    try:
        regime = next((one for one in case.here.zones.regimes() if one.id == case.asked.id), None)
    except MISSING:
        regime = None
    facts = {"period": f"{summary.day(case.since)} … {summary.day(case.until)}", "log": case.origin}
    loose = summary.unverified(case.asked, regime, ground.missing)
    for language in ("ar", "en"):
        text = summary.markdown(language, case.asked, facts, case.controls, loose)
        yield f"summary.{language}.md", text.encode()
    yield "summary.html", _printed(case, regime, ground, files).encode()


def _printed(case: Case, regime: Regime | None, ground: Ground, files: Mapping[str, Rows | None]) -> str:
    """The summary for print, Arabic first, as one page without outside resources."""
    try:
        organisation = case.here.privacy.organisation()
    except MISSING:
        organisation = Organisation()
    reasons = [row["not_applicable"].get(case.asked.id) for row in files["labels.jsonl"] or []]
    facts = SummaryFacts(
        case.asked, regime, case.controls, case.since, case.until, case.origin, ground.missing,
        files["documents.jsonl"] or [], Counter(filter(None, reasons)),
    )  # fmt: skip
    return render_documents([build_summary_document(facts, organisation, language) for language in ("ar", "en")])


def _written(name: str, rows: Rows) -> bytes:
    lines = [_json(plain(row)) for row in rows]
    if name.endswith(".json"):
        return b"[" + b",\n".join(lines) + b"]\n"
    return b"".join(line + b"\n" for line in sorted(lines))


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
