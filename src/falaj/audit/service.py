"""The audit desk: the log, proofs, evidence packs, witnesses and lineage, each within the caller's tenant."""

import json
import os
import subprocess  # nosec B404
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from falaj.audit import evidence_pack, lineage_graphs, log_reading, proofs, signed_note
from falaj.audit import lineage as lines
from falaj.audit import lineage_drawing as pictures
from falaj.audit.attestations import AttestationOperations
from falaj.audit.log_sealing import KeyringLogKeys, LogKeyProvider, LogSealer, SealedLog
from falaj.audit.records import (
    ConsistencyProof,
    InclusionProof,
    LineageGraph,
    LineageImpact,
    LogCheck,
    LogEntry,
    LogEntryPage,
    PackVerdict,
    RegisteredWitness,
    SignedCheckpoint,
    UnfinishedIntent,
)
from falaj.audit.timestamping import TimestampOperations
from falaj.core.byte_stream import ByteStream
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, CorruptData, Invalid
from falaj.core.merkle_frontier import MerkleFrontier, hash_leaf
from falaj.core.minimal_environment import get_minimal_environment
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.keyring import Keyring
from falaj.store.ledger import Ledger

ZoneParam = Annotated[str, "the zone whose log is meant; your own when empty"]
DRAWING_FORMS = ("text", "json", "openlineage", "dot", "svg")
_PAGE_SIZE = 5000
_VERIFY_TIMEOUT_S = 3600
_UNPROVEN_MESSAGE = (
    "authenticity unproven: nothing was changed, but no trusted key shows which log signed it; give --key"
)


class AuditService(AttestationOperations, TimestampOperations):
    """What can be proved."""

    def __init__(
        self,
        ledger: Ledger,
        keyring: Keyring | LogKeyProvider,
        installation: str,
        open_blobs: Callable[[], object] | None = None,
    ) -> None:
        """`open_blobs` gives the blob store whose server's clock ours is compared with."""
        self._ledger = ledger
        self._open_blobs = open_blobs
        self._keys: LogKeyProvider = KeyringLogKeys(keyring) if isinstance(keyring, Keyring) else keyring
        self.sealer = LogSealer(ledger, self._keys, installation)
        self.unfinished_intents = log_reading.UnfinishedIntents(ledger)

    @operation(group="audit")
    def log(
        self,
        ctx: CallContext,
        about: Annotated[str, "a reference, or the id of a request"] = "",
        verb: Annotated[str, "only this act, for example store.copy; several with blanks between"] = "",
        actor: Annotated[str, "only what this one did"] = "",
        since: Annotated[float, "not older than this, in seconds since 1970"] = 0.0,
        older: Annotated[str, "`older` of the page before, or a time in seconds since 1970"] = "",
        limit: Annotated[int, "how many"] = 50,
        zone: ZoneParam = "",
    ) -> LogEntryPage:
        """Show what happened, newest first. About a thing that is also what was refused to be done to it.

        Example:
            falaj audit log --about dataset:fraud/transactions --limit 20
        """
        if not 0 < limit <= 1000:
            raise Invalid(f"a page of {limit} events", "ask for 1 to 1000 and go on with --older")
        log = self.open_log(ctx, zone)
        refused_ref = about if ":" in about else ""
        filters = log_reading.build_filters(about, verb, actor)
        rows, cursor = log_reading.LogReader(self._ledger, log, filters, since, refused_ref).newest(limit, older)
        return LogEntryPage(tuple(log_reading.open_entry(self._ledger, row) for row in rows), cursor)

    @operation(group="audit")
    def show(self, ctx: CallContext, event: Annotated[str, "the id of an event"]) -> LogEntry:
        """Show one event.

        Example:
            falaj audit show 0199d2f0c3a1…
        """
        return log_reading.to_entry(self.find_event(ctx, event).event)

    @operation(group="audit")
    def watch(self, ctx: CallContext) -> bool:
        """Say whether you may listen to the log as it grows (GET /v1/events).

        Example:
            falaj audit watch
        """
        return ctx.tenant != ""

    @operation(group="audit", has_outside_effects=True)
    def prove(self, ctx: CallContext, event: Annotated[str, "the id of an event"]) -> InclusionProof:
        """Prove that an event is in the log: a file that anyone can check offline.

        Example:
            falaj audit prove 0199d2f0c3a1… --json > proof.json && python falaj_verify.py proof.json --key KEY
        """
        logged_event = self.find_event(ctx, event)
        zone = logged_event.event.zone
        if logged_event.pos > self.open_log(ctx, zone).head.pos:
            self.sealer.seal_all(ctx, ctx.tenant, zone)
        return proofs.prove_event(self.open_log(ctx, zone), logged_event)

    @operation(group="audit")
    def consistency(
        self,
        ctx: CallContext,
        old: Annotated[int, "the smaller size"],
        new: Annotated[int, "the larger size"],
        zone: ZoneParam = "",
    ) -> ConsistencyProof:
        """Prove that the log of `old` events is the beginning of the log of `new` events.

        Example:
            falaj audit consistency 1000 2000 --json
        """
        zone = zone or ctx.zone
        return proofs.prove_growth(self.open_log(ctx, zone), self.sealer.origin(ctx.tenant, zone), old, new)

    @operation(group="audit")
    def checkpoints(
        self,
        ctx: CallContext,
        limit: Annotated[int, "how many"] = 10,
        before: Annotated[int, "older than this number"] = 0,
        zone: ZoneParam = "",
    ) -> tuple[SignedCheckpoint, ...]:
        """List the signed checkpoints of the log, newest first.

        Example:
            falaj audit checkpoints --limit 1
        """
        if not 0 < limit <= 1000:
            raise Invalid(f"a page of {limit} checkpoints", "ask for 1 to 1000 and go on with --before")
        log = self.open_log(ctx, zone)
        newest_number = min(before - 1, log.head.number) if before else log.head.number
        return tuple(log.checkpoint(number) for number in range(newest_number, max(0, newest_number - limit), -1))

    @operation(group="audit", has_outside_effects=True)
    def seal(self, ctx: CallContext, zone: ZoneParam = "") -> SignedCheckpoint:
        """Put everything in the log under a signed checkpoint now, instead of within a second.

        Example:
            falaj audit seal
        """
        return self.seal_now(ctx, zone)

    @operation(group="audit", has_outside_effects=True)
    def export(
        self,
        ctx: CallContext,
        since: Annotated[float, "from this time on, in seconds since 1970; 0 is the beginning"] = 0.0,
        until: Annotated[float, "up to this time; 0 is now"] = 0.0,
        prove: Annotated[tuple[str, ...], "ids of events to prove one by one"] = (),
        zone: ZoneParam = "",
    ) -> ByteStream:
        """Export an evidence pack: events, checkpoints, proofs, keys and the verifier, in one zip file.

        Example:
            falaj audit export --out evidence.zip && falaj audit verify evidence.zip
        """
        if until and until < since:
            raise Invalid("the time ends before it begins", "since must not be after until")
        zone = zone or ctx.zone
        if not until:
            self.seal_now(ctx, zone)
        log = self.open_log(ctx, zone)
        log.newest()
        checkpoint_range = _find_checkpoint_range(log, since, until)
        proven_events = [self.find_event(ctx, event_id) for event_id in prove]
        with self._ledger.write(ctx) as tx:
            checkpoint_ref = Ref("checkpoint", zone, f"c{checkpoint_range.last:012d}", "r1")
            tx.emit(
                "audit.export",
                checkpoint_ref,
                first=checkpoint_range.first,
                last=checkpoint_range.last,
                proven=len(proven_events),
            )
        _, signer = self._keys.newest(ctx.tenant, zone)
        pack_files = evidence_pack.generate_pack_files(
            log,
            checkpoint_range,
            self.create_line_reader(ctx.tenant, zone),
            signer,
            self._witnesses(ctx, zone),
            proven_events,
        )
        return ByteStream(evidence_pack.generate_zip(pack_files))

    @operation(group="audit", has_outside_effects=True)
    def verify(
        self,
        ctx: CallContext,
        pack: Annotated[ByteStream, "the evidence pack or proof"],
        key: Annotated[str, "the log's public key, as you were given it"] = "",
    ) -> PackVerdict:
        """Check an evidence pack with the offline verifier, which shares no code with the log.

        Example:
            falaj audit verify evidence.zip
        """
        handle = os.memfd_create("pack")
        with os.fdopen(handle, "wb") as file:
            for chunk in pack:
                file.write(chunk)
            file.flush()
            return verify_pack(f"/proc/{os.getpid()}/fd/{handle}", key)

    @operation(group="see")
    def verifier(self, ctx: CallContext) -> ByteStream:
        """Give the single-file offline verifier, for an auditor to keep.

        Example:
            falaj audit verifier --out falaj_verify.py
        """
        data = evidence_pack.VERIFIER_PATH.read_bytes()
        return ByteStream([data], len(data))

    @operation(group="audit", has_outside_effects=True)
    def check(self, ctx: CallContext, zone: ZoneParam = "") -> LogCheck:
        """Read the living log from its first event to its last and compare every hash with the signed root.

        The signature of that root is checked as well.

        Example:
            falaj audit check
        """
        zone = zone or ctx.zone
        log = self.open_log(ctx, zone)
        frontier, size, cursor, finding = MerkleFrontier(), 0, "", ""
        try:
            while logged_events := self._ledger.tail(cursor, tenant=ctx.tenant, zone=zone, limit=_PAGE_SIZE):
                frontier.extend(
                    hash_leaf(logged_event.raw) for logged_event in logged_events[: max(0, log.head.size - size)]
                )
                size, cursor = size + len(logged_events), logged_events[-1].pos
        except CorruptData as error:
            finding = f"after {size} events: {error.message}"
        log_check = LogCheck(self.sealer.origin(ctx.tenant, zone), size, log.head.size, not finding, finding)
        return _compare_with_checkpoint(log.newest(), frontier, log_check) if log.head.number else log_check

    @operation(group="govern")
    def enrol(
        self,
        ctx: CallContext,
        name: Annotated[str, "the witness's name"],
        key: Annotated[str, "its public key, base64"],
        zone: ZoneParam = "",
    ) -> RegisteredWitness:
        """Register a witness: from now on its cosignatures of checkpoints are accepted.

        Example:
            falaj audit enrol regulator "$(python -m falaj.audit.witness --name regulator --folder w key)"
        """
        zone = zone or ctx.zone
        if len(signed_note.decode_base64(key)) != 32 or not signed_note.is_witness_name(name):
            raise Invalid(
                "this is no key or no name of a witness", "a name like regulator.example and 32 bytes in base64"
            )
        ref = Ref("witness", zone, name)
        with self._ledger.write(ctx) as tx:
            earlier_record = tx.get(ref)
            record = tx.put(ref, {"name": name, "key": key}, rev=earlier_record.rev if earlier_record else None)
            tx.emit("audit.enrol", record.ref, name=name, key=key)
        return RegisteredWitness(name, key, zone)

    @operation(group="audit")
    def cosign(
        self,
        ctx: CallContext,
        signed: Annotated[str, "the checkpoint with the witness's line added"],
        zone: ZoneParam = "",
    ) -> SignedCheckpoint:
        """Hand in a checkpoint that a witness has cosigned.

        Example:
            falaj audit cosign "$(python -m falaj.audit.witness --name regulator --folder w cosign checkpoint.txt)"
        """
        log = self.open_log(ctx, zone)
        checkpoint = log.checkpoint(signed_note.parse_checkpoint(signed).number)
        text, given_lines = signed_note.split_note(signed)
        known_lines = signed_note.split_note(checkpoint.note)[1]
        if signed_note.split_note(checkpoint.note)[0] != text:
            raise Conflict(
                "this is not the log's checkpoint of that number", "somebody shows the witness another log: keep both"
            )
        keys = {witness.name: witness for witness in self._witnesses(ctx, log.zone)}
        with self._ledger.write(ctx) as tx:
            for line in [line for line in given_lines if line not in known_lines]:
                name = line.split(" ")[1] if line.count(" ") == 2 else ""
                if name not in keys or not signed_note.verify_signature_line(
                    text, line, name, signed_note.decode_base64(keys[name].key)
                ):
                    raise Invalid("a signature is not that of a registered witness", "run: falaj audit enrol")
                record = tx.put(Ref("cosignature", log.zone, f"c{checkpoint.number:012d}.{name}"), {"line": line})
                tx.emit("audit.cosign", record.ref, witness=name, size=checkpoint.size)
        return self.open_log(ctx, log.zone).checkpoint(checkpoint.number)

    @operation(group="audit")
    def unfinished(
        self, ctx: CallContext, age_s: Annotated[float, "begun at least so long ago"] = 60.0, zone: ZoneParam = ""
    ) -> tuple[UnfinishedIntent, ...]:
        """List acts outside the ledger that were begun and have no recorded outcome.

        Example:
            falaj audit unfinished
        """
        return self.unfinished_intents.of(ctx.tenant, zone or ctx.zone, ctx.now() - age_s)

    @operation(reads=("ref",))
    def lineage(
        self,
        ctx: CallContext,
        ref: Annotated[Ref, "the thing"],
        direction: Annotated[str, "up (made from), down (went into) or both"] = "both",
        depth: Annotated[int, "how many steps; 0 is all"] = 0,
    ) -> LineageGraph:
        """Show what a thing was made from and what was made from it.

        Example:
            falaj audit lineage model:fraud/scorer@v3 --direction up
        """
        return lineage_graphs.find_visible_graph(self._ledger, ctx, ref, direction, depth)

    @operation(reads=("ref",))
    def draw(
        self,
        ctx: CallContext,
        ref: Annotated[Ref, "the thing"],
        form: Annotated[str, "text, json, openlineage, dot or svg"] = "text",
        direction: Annotated[str, "up, down or both"] = "both",
        depth: Annotated[int, "how many steps; 0 is all"] = 0,
    ) -> str:
        """Draw the lineage of a thing.

        Example:
            falaj audit draw model:fraud/scorer@v3 --form svg > lineage.svg
        """
        graph = lineage_graphs.find_visible_graph(self._ledger, ctx, ref, direction, depth)
        drawings: dict[str, Callable[[], str]] = {
            "text": lambda: lines.format_tree(graph),
            "json": lambda: lines.to_json_text(graph),
            "openlineage": lambda: lines.to_openlineage(graph, f"falaj/{ctx.tenant}"),
            "dot": lambda: pictures.to_dot(graph),
            "svg": lambda: pictures.to_svg(graph),
        }
        if form not in drawings:
            raise Invalid(f"{form!r} is no form of a drawing", f"one of: {', '.join(DRAWING_FORMS)}")
        return drawings[form]()

    @operation(reads=("ref",))
    def impact(self, ctx: CallContext, ref: Annotated[Ref, "the thing that turned out to be wrong"]) -> LineageImpact:
        """Say what is touched when a thing is wrong or must go: everything made from it, and where it lies.

        Example:
            falaj audit impact dataset:fraud/transactions@v3
        """
        graph = lineage_graphs.find_visible_graph(self._ledger, ctx, ref, lines.DOWNSTREAM, limit=1_000_000)
        with self._ledger.read(ctx) as tx:
            scopes = (tx.cell(Ref.parse(node.ref)) for node in graph.nodes if node.depth > 0 and not node.hidden)
            return lines.build_impact(graph, {scope.zone for scope in scopes if scope})

    def seal_now(self, ctx: CallContext, zone: str = "") -> SignedCheckpoint:
        """Seal at once, for callers that need a proof at once; gives the newest checkpoint."""
        zone = zone or ctx.zone
        return self.sealer.seal_all(ctx, ctx.tenant, zone) or self.open_log(ctx, zone).newest()

    def create_line_reader(self, tenant: str, zone: str) -> evidence_pack.ReadLogLines:
        return lambda after, limit: self._ledger.lines(after, tenant=tenant, zone=zone, limit=min(limit, _PAGE_SIZE))

    def _witnesses(self, ctx: CallContext, zone: str) -> list[RegisteredWitness]:
        with self._ledger.read(ctx) as tx:
            records = tx.find("witness", project=zone, limit=1000).records
        return [RegisteredWitness(record.body["name"], record.body["key"], zone) for record in records]


def _compare_with_checkpoint(newest: SignedCheckpoint, frontier: MerkleFrontier, log_check: LogCheck) -> LogCheck:
    """What was read, held against the newest checkpoint and that against its own signature."""
    text, lines = signed_note.split_note(newest.note)
    is_signed = any(
        signed_note.verify_signature_line(text, line, newest.origin, signed_note.decode_base64(newest.key))
        for line in lines
    )
    finding = log_check.finding
    if not finding and frontier.root() != signed_note.decode_base64(newest.root):
        finding = f"the {frontier.size} events of the ledger do not lead to the root of checkpoint {newest.number}"
    if not finding and not is_signed:
        finding = f"checkpoint {newest.number} is not signed by the key it names"
    return replace(
        log_check, ok=not finding, finding=finding, checkpoint=newest.number, root=newest.root, signed=is_signed
    )


def verify_pack(path: str | Path, key: str = "") -> PackVerdict:
    """Run the offline verifier over a file or folder, in a process of its own that sees nothing of Falaj."""
    options = ["--key", key] if key else []
    command = [sys.executable, "-I", str(evidence_pack.VERIFIER_PATH), str(path), "--json", *options]
    completed = subprocess.run(  # noqa: S603 # nosec B603
        command, env=get_minimal_environment(), capture_output=True, text=True, timeout=_VERIFY_TIMEOUT_S, check=False
    )
    if not completed.stdout:
        raise Invalid(
            completed.stderr.strip()[-300:] or "the pack cannot be checked", "give an evidence pack or a proof"
        )
    report: dict[str, Any] = json.loads(completed.stdout)
    first_problem = (
        _describe_problem(report["first"]) if report["first"] else _UNPROVEN_MESSAGE if report["unproven"] else ""
    )
    return PackVerdict(
        report["ok"], report.get("events", 0), report.get("checkpoints", 0), first_problem, completed.stdout
    )


def _describe_problem(problem: dict[str, Any]) -> str:
    location_texts = [
        f"{field_name} {problem[field_name]}"
        for field_name in ("file", "line", "event", "checkpoint")
        if field_name in problem
    ]
    return ", ".join(location_texts) + f": {problem['what']}" if location_texts else str(problem["what"])


def _find_checkpoint_range(log: SealedLog, since: float, until: float) -> evidence_pack.CheckpointRange:
    """Whole checkpoints around the time asked for."""
    first = proofs.find_checkpoint_at(log, since, is_after=False) if since else 0
    last = proofs.find_checkpoint_at(log, until, is_after=True) if until else log.head.number
    if last <= first:
        first = max(0, last - 1)
    return evidence_pack.CheckpointRange(first, last)
