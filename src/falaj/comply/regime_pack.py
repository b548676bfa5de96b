"""Evidence packs by regime: the log's own pack, and beside it what the desks know, judged control by control.

The log's part is made and signed by the platform (audit/evidence_pack.py) and goes through here unchanged. What is put
beside it is listed in `evidence.json`, bound to that part, and its digest is put into the log by `audit attest`: the
proof of that event, under a checkpoint the log signed, is the signature. So nobody has the log's key sign what it
cannot know, and whoever put it together stands in the log with their name.
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

from falaj.audit import signed_note
from falaj.comply import summary
from falaj.comply.control_maps import find_control_map, judge_controls
from falaj.comply.enclosed_files import MAX_DOCUMENT_BYTES, PackedDocument, read_enclosed
from falaj.comply.event_tally import EventTally, generate_zip, iterate_zip_files
from falaj.comply.period_facts import AttachedDocument, PeriodFacts
from falaj.comply.platform_snapshot import READ_ERRORS, READERS_BY_FILE, PlatformSnapshot, RowList, to_plain_row
from falaj.comply.records import (
    ATTESTED,
    EXCEPTIONS,
    NOT_APPLICABLE,
    NOT_SHOWN,
    OPERATING,
    ControlJudgement,
    ControlMap,
    EvidenceReport,
)
from falaj.comply.summary_document import SummaryFacts, build_summary_document
from falaj.core.client_command import Client
from falaj.core.data import dataclass
from falaj.core.documents import IssuingOrganisation, render_documents
from falaj.core.errors import FalajError
from falaj.govern.records import LegalRegime
from falaj.services import list_actions
from falaj.store.codec import to_plain, to_stable_json

REGIME_PACK_FORMAT = "falaj-regime/1"
TRANSFER_ACTIONS = ("store.copy", "catalog.copy", "catalog.carry", "serve.pack", "zones.lower", "zones.revoke")
FAR_FUTURE = "9999-12-31T00:00:00+00:00"


@dataclass
class PackBuild:
    """One pack on its way."""

    here: Client
    asked: ControlMap
    since: float
    until: float
    zone: str = ""
    enclosed: Sequence[PackedDocument] = ()
    checkpoints: tuple[float, ...] = ()
    log_digest: str = ""
    origin: str = ""
    digest: str = ""
    controls: tuple[ControlJudgement, ...] = ()
    tally: EventTally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = EventTally(self.since, self.until)


def build_pack(
    client: Client,
    regime: str,
    out: Path,
    since: float = 0.0,
    until: float = 0.0,
    zone: str = "",
    enclose: Iterable[str] = (),
) -> EvidenceReport:
    """Make the pack of a period; `until` 0 is now. The same period of the same platform gives the same bytes."""
    regime_map = find_control_map(regime)
    case = PackBuild(client, regime_map, since, _find_period_end(client, until, zone), zone, read_enclosed(enclose))
    size, partial_path = 0, out.with_name(out.name + ".part")
    with partial_path.open("wb") as file:
        for chunk in generate_zip(_generate_entries(case)):
            size += file.write(chunk)
    partial_path.replace(out)
    return EvidenceReport(
        regime_map.id,
        str(out),
        size,
        case.digest,
        case.tally.events,
        since,
        case.until,
        _list_controls_with(case, OPERATING),
        _list_controls_with(case, EXCEPTIONS),
        _list_controls_with(case, ATTESTED),
        _list_controls_with(case, NOT_SHOWN),
        _list_controls_with(case, NOT_APPLICABLE),
        case.controls,
    )


def _list_controls_with(case: PackBuild, status: str) -> tuple[str, ...]:
    return tuple(control.id for control in case.controls if control.status == status)


def _find_period_end(client: Client, until: float, zone: str) -> float:
    """A moment that is over: the asked one, or the newest checkpoint when the asked one is still to come."""
    newest = client.audit.seal(zone=zone)
    return min(until, float(newest.at)) if until else float(newest.at)


def _generate_entries(case: PackBuild) -> Iterator[tuple[str, bytes]]:
    """The log's part as it comes, then the evidence, which has by then seen every event of it."""
    stream = case.here.audit.export(since=case.since, until=case.until, zone=case.zone)
    for name, data in iterate_zip_files(stream):
        if name.startswith("events/") and name.endswith(".jsonl"):
            case.tally.take(data)
        elif name == "checkpoints.jsonl":
            case.checkpoints = tuple(signed_note.parse_checkpoint(json.loads(line)).at for line in data.splitlines())
        elif name == "manifest.json":
            case.log_digest, case.origin = hashlib.sha256(data).hexdigest(), json.loads(data)["origin"]
        yield name, data
    manifest_files: dict[str, dict[str, str | int]] = {}
    for name, data in _generate_evidence(case):
        manifest_files[f"evidence/{name}"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        yield f"evidence/{name}", data
    subject = f"{case.asked.id}, {summary.format_moment(case.since)} to {summary.format_moment(case.until)}"
    evidence_manifest = _encode_canonical_json(
        {
            "about": subject,
            "files": manifest_files,
            "format": REGIME_PACK_FORMAT,
            "log": case.log_digest,
            "regime": case.asked.id,
        }
    )
    yield "evidence.json", evidence_manifest
    case.digest = f"sha256:{hashlib.sha256(evidence_manifest).hexdigest()}"
    proof = case.here.audit.attest(case.digest, f"evidence: {subject}", zone=case.zone)
    yield "evidence.proof.json", _encode_canonical_json(to_plain(proof))


def _generate_evidence(case: PackBuild) -> Iterator[tuple[str, bytes]]:
    since = case.since or case.tally.first_at  # a log that begins after the period's start shows as a gap
    log_files = _read_logged_files(case.tally)
    promoted_models = {row["subject"].partition("@")[0] for row in log_files["promotions.jsonl"] or ()}
    snapshot = PlatformSnapshot(case.here, period=(since, case.until), promoted=frozenset(promoted_models))
    files: dict[str, RowList | None] = {name: snapshot.rows(name) for name in READERS_BY_FILE} | log_files
    files["ropa.json"] = _read_ropa(case, snapshot)
    files["access.jsonl"] = _build_access_rows(files, case.tally)
    stored_documents = list(_open_documents(case, snapshot, files["documents.jsonl"] or []))
    documents = {packed_document.file: packed_document.data for packed_document in (*stored_documents, *case.enclosed)}
    _name_removed(snapshot, files["grants.jsonl"] or [], files["documents.jsonl"])
    attached_documents = tuple(
        packed_document.attached
        for packed_document in (*stored_documents, *case.enclosed)
        if packed_document.attached is not None
    )
    files["attached.jsonl"] = [to_plain(document) for document in attached_documents]
    facts = PeriodFacts(
        case.asked.id,
        files,
        since,
        case.until,
        snapshot.missing,
        case.checkpoints,
        attached_documents,
        case.tally.first_at,
    )
    case.controls = judge_controls(case.asked, facts)
    yield "controls.json", to_stable_json({"controls": case.controls, "map": case.asked})
    yield "acts.json", _encode_canonical_json({"acts": case.tally.acts(), "events": case.tally.events})
    for name, rows in sorted(files.items()):
        if rows is not None:
            yield name, _encode_rows(name, rows)
    yield "missing.json", _encode_canonical_json(snapshot.missing)
    yield from sorted(documents.items())
    yield from _generate_summaries(case, snapshot, files)


def _open_documents(case: PackBuild, snapshot: PlatformSnapshot, rows: RowList) -> Iterator[PackedDocument]:
    """The documents that decisions rested on, by content; one that is too large or may not be read is named missing."""
    for row in rows:
        digest = str(row["digest"]).removeprefix("sha256:")
        suffix = re.sub(r"[^a-z0-9]", "", mimetypes.guess_extension(str(row["media"])) or ".bin")
        name = f"document-{digest[:16]}.{suffix}"
        if int(row["size_bytes"]) > MAX_DOCUMENT_BYTES:
            snapshot.missing[name] = (
                f"{row['name']} has more than {MAX_DOCUMENT_BYTES >> 20} MiB: open it at the platform"
            )
            continue
        try:
            data = case.here.approvals.open_document(row["name"]).read()
        except READ_ERRORS as error:
            snapshot.missing[name] = error.message if isinstance(error, FalajError) else "documents cannot be read here"
            continue
        if hashlib.sha256(data).hexdigest() != digest:
            snapshot.missing[name] = f"{row['name']}: its bytes do not have the digest {row['digest']}"
            continue
        yield PackedDocument(name, data, AttachedDocument(row["kind"], row["name"], row["digest"], row["added_at"]))


def _name_removed(ground: PlatformSnapshot, grants: RowList, kept: RowList | None) -> None:
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


def _read_logged_files(tally: EventTally) -> dict[str, RowList | None]:
    """The files that are readings of the log."""
    groups_by_action, denied_rows = list_actions(), tally.rows("guard.deny")
    for row in denied_rows:
        row["transfer"] = groups_by_action.get(str(row["body"].get("action"))) == "move"
    finished_transfers = [row for row in tally.rows(*TRANSFER_ACTIONS) if row["body"].get("phase", "done") == "done"]
    return {
        "transfers.jsonl": finished_transfers,
        "denied.jsonl": denied_rows,
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


def _build_access_rows(files: Mapping[str, RowList | None], tally: EventTally) -> RowList | None:
    """Who has what, when they were last seen in the period, which roles opened no door, and what a review said."""
    people, answers = files.get("people.jsonl"), {row["person"]: row for row in files.get("answers.jsonl") or ()}
    if people is None:
        return None
    last_seen_at, roles_by_actor = tally.last_seen(), tally.roles_used()
    return [
        row
        | {"last_used": last_seen_at.get(row["name"], 0.0), "answer": answers.get(row["name"])}
        | {"unused_roles": sorted(set(row["roles"]) - roles_by_actor.get(row["name"], set()))}
        for row in people
    ]


def _read_ropa(case: PackBuild, snapshot: PlatformSnapshot) -> RowList | None:
    """The record of processing. What was done stands in the log's own part and in acts.json, so it is not asked for."""
    try:
        processing_record: dict[str, Any] = dict(case.here.privacy.ropa(case.asked.id, since=FAR_FUTURE).record)
    except READ_ERRORS as error:
        snapshot.missing["ropa.json"] = error.message if isinstance(error, FalajError) else "no errand makes one"
        return None
    processing_record.pop("activity", None)
    for name, volatile_field in (("transfers", "state"), ("breaches", "overdue")):
        processing_record[name] = [
            {key: value for key, value in row.items() if key != volatile_field} for row in processing_record[name]
        ]
    return [processing_record]


def _generate_summaries(
    case: PackBuild, snapshot: PlatformSnapshot, files: Mapping[str, RowList | None]
) -> Iterator[tuple[str, bytes]]:
    try:
        regime = next(
            (listed_regime for listed_regime in case.here.zones.regimes() if listed_regime.id == case.asked.id), None
        )
    except READ_ERRORS:
        regime = None
    facts = {"period": f"{summary.format_moment(case.since)} … {summary.format_moment(case.until)}", "log": case.origin}
    unverified_notes = summary.list_unverified(case.asked, regime, snapshot.missing)
    for language in ("ar", "en"):
        text = summary.format_markdown(language, case.asked, facts, case.controls, unverified_notes)
        yield f"summary.{language}.md", text.encode()
    yield "summary.html", _render_printable(case, regime, snapshot, files).encode()


def _render_printable(
    case: PackBuild, regime: LegalRegime | None, snapshot: PlatformSnapshot, files: Mapping[str, RowList | None]
) -> str:
    """The summary for print, Arabic first, as one page without outside resources."""
    try:
        organisation = case.here.privacy.organisation()
    except READ_ERRORS:
        organisation = IssuingOrganisation()
    reasons = [row["not_applicable"].get(case.asked.id) for row in files["labels.jsonl"] or []]
    facts = SummaryFacts(
        case.asked,
        regime,
        case.controls,
        case.since,
        case.until,
        case.origin,
        snapshot.missing,
        files["documents.jsonl"] or [],
        Counter(filter(None, reasons)),
    )
    return render_documents([build_summary_document(facts, organisation, language) for language in ("ar", "en")])


def _encode_rows(name: str, rows: RowList) -> bytes:
    lines = [_encode_canonical_json(to_plain_row(row)) for row in rows]
    if name.endswith(".json"):
        return b"[" + b",\n".join(lines) + b"]\n"
    return b"".join(line + b"\n" for line in sorted(lines))


def _encode_canonical_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
