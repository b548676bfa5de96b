"""The audit desk: the log, proofs, evidence packs, witnesses and lineage, each within the caller's tenant."""

import json
import os
import subprocess  # nosec B404
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from falaj.audit import draw as pictures
from falaj.audit import graphs, note, pack, prove, reading
from falaj.audit import lineage as lines
from falaj.audit.records import (
    Check,
    Checkpoint,
    Consistency,
    Entries,
    Entry,
    Graph,
    Impact,
    Intent,
    Proof,
    Verdict,
    Witness,
)
from falaj.audit.seal import KeyringSigners, Log, LogKeys, Sealer
from falaj.audit.timestamping import Timestamping
from falaj.audit.vouching import Vouching
from falaj.core.context import Context
from falaj.core.errors import Conflict, Corrupt, Invalid
from falaj.core.frontier import Frontier, leaf_hash
from falaj.core.own_environment import own_environment
from falaj.core.ref import Ref
from falaj.core.stream import Stream
from falaj.core.verb import verb
from falaj.govern.keys import Keyring
from falaj.store.ledger import Ledger

Zone = Annotated[str, "the zone whose log is meant; your own when empty"]
FORMS = ("text", "json", "openlineage", "dot", "svg")
_PAGE = 5000
_VERIFY_S = 3600
_UNPROVEN = "authenticity unproven: nothing was changed, but no trusted key shows which log signed it; give --key"


class Audit(Vouching, Timestamping):
    """What can be proved."""

    def __init__(
        self,
        ledger: Ledger,
        keyring: Keyring | LogKeys,
        installation: str,
        open_blobs: Callable[[], object] | None = None,
    ) -> None:
        """`open_blobs` gives the blob store whose server's clock ours is compared with."""
        self._ledger = ledger
        self._open_blobs = open_blobs
        self._keys: LogKeys = KeyringSigners(keyring) if isinstance(keyring, Keyring) else keyring
        self.sealer = Sealer(ledger, self._keys, installation)
        self._unfinished = reading.Unfinished(ledger)

    @verb(group="audit")
    def log(
        self,
        ctx: Context,
        about: Annotated[str, "a reference, or the id of a request"] = "",
        verb: Annotated[str, "only this act, for example store.copy; several with blanks between"] = "",
        actor: Annotated[str, "only what this one did"] = "",
        since: Annotated[float, "not older than this, in seconds since 1970"] = 0.0,
        older: Annotated[str, "`older` of the page before, or a time in seconds since 1970"] = "",
        limit: Annotated[int, "how many"] = 50,
        zone: Zone = "",
    ) -> Entries:
        """Show what happened, newest first. About a thing that is also what was refused to be done to it.

        Example:
            falaj audit log --about dataset:fraud/transactions --limit 20
        """
        if not 0 < limit <= 1000:
            raise Invalid(f"a page of {limit} events", "ask for 1 to 1000 and go on with --older")
        log = self._log(ctx, zone)
        refused = about if ":" in about else ""
        where = reading.filters(about, verb, actor)
        rows, cursor = reading.Backwards(self._ledger, log, where, since, refused).newest(limit, older)
        return Entries(tuple(reading.entry_of(self._ledger, row) for row in rows), cursor)

    @verb(group="audit")
    def show(self, ctx: Context, event: Annotated[str, "the id of an event"]) -> Entry:
        """Show one event.

        Example:
            falaj audit show 0199d2f0c3a1…
        """
        return reading.as_entry(self._fact(ctx, event).event)

    @verb(group="audit")
    def watch(self, ctx: Context) -> bool:
        """Say whether you may listen to the log as it grows (GET /v1/events).

        Example:
            falaj audit watch
        """
        return ctx.tenant != ""

    @verb(group="audit", outside=True)
    def prove(self, ctx: Context, event: Annotated[str, "the id of an event"]) -> Proof:
        """Prove that an event is in the log: a file that anyone can check offline.

        Example:
            falaj audit prove 0199d2f0c3a1… --json > proof.json && python falaj_verify.py proof.json --key KEY
        """
        fact = self._fact(ctx, event)
        zone = fact.event.zone
        if fact.pos > self._log(ctx, zone).head.pos:
            self.sealer.seal_all(ctx, ctx.tenant, zone)
        return prove.prove(self._log(ctx, zone), fact)

    @verb(group="audit")
    def consistency(
        self,
        ctx: Context,
        old: Annotated[int, "the smaller size"],
        new: Annotated[int, "the larger size"],
        zone: Zone = "",
    ) -> Consistency:
        """Prove that the log of `old` events is the beginning of the log of `new` events.

        Example:
            falaj audit consistency 1000 2000 --json
        """
        zone = zone or ctx.zone
        return prove.prove_growth(self._log(ctx, zone), self.sealer.origin(ctx.tenant, zone), old, new)

    @verb(group="audit")
    def checkpoints(
        self,
        ctx: Context,
        limit: Annotated[int, "how many"] = 10,
        before: Annotated[int, "older than this number"] = 0,
        zone: Zone = "",
    ) -> tuple[Checkpoint, ...]:
        """List the signed checkpoints of the log, newest first.

        Example:
            falaj audit checkpoints --limit 1
        """
        if not 0 < limit <= 1000:
            raise Invalid(f"a page of {limit} checkpoints", "ask for 1 to 1000 and go on with --before")
        log = self._log(ctx, zone)
        top = min(before - 1, log.head.number) if before else log.head.number
        return tuple(log.checkpoint(number) for number in range(top, max(0, top - limit), -1))

    @verb(group="audit", outside=True)
    def seal(self, ctx: Context, zone: Zone = "") -> Checkpoint:
        """Put everything in the log under a signed checkpoint now, instead of within a second.

        Example:
            falaj audit seal
        """
        return self.seal_now(ctx, zone)

    @verb(group="audit", outside=True)
    def export(
        self,
        ctx: Context,
        since: Annotated[float, "from this time on, in seconds since 1970; 0 is the beginning"] = 0.0,
        until: Annotated[float, "up to this time; 0 is now"] = 0.0,
        prove: Annotated[tuple[str, ...], "ids of events to prove one by one"] = (),
        zone: Zone = "",
    ) -> Stream:
        """Export an evidence pack: events, checkpoints, proofs, keys and the verifier, in one zip file.

        Example:
            falaj audit export --out evidence.zip && falaj audit verify evidence.zip
        """
        if until and until < since:
            raise Invalid("the time ends before it begins", "since must not be after until")
        zone = zone or ctx.zone
        if not until:
            self.seal_now(ctx, zone)
        log = self._log(ctx, zone)
        log.newest()
        span = _span(log, since, until)
        proven = [self._fact(ctx, id_) for id_ in prove]
        with self._ledger.write(ctx) as tx:
            subject = Ref("checkpoint", zone, f"c{span.last:012d}", "r1")
            tx.emit("audit.export", subject, first=span.first, last=span.last, proven=len(proven))
        _, signer = self._keys.newest(ctx.tenant, zone)
        files = pack.files(log, span, self._facts(ctx.tenant, zone), signer, self._witnesses(ctx, zone), proven)
        return Stream(pack.zip_stream(files))

    @verb(group="audit", outside=True)
    def verify(
        self,
        ctx: Context,
        pack: Annotated[Stream, "the evidence pack or proof"],
        key: Annotated[str, "the log's public key, as you were given it"] = "",
    ) -> Verdict:
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

    @verb(group="see")
    def verifier(self, ctx: Context) -> Stream:
        """Give the single-file offline verifier, for an auditor to keep.

        Example:
            falaj audit verifier --out falaj_verify.py
        """
        data = pack.VERIFIER.read_bytes()
        return Stream([data], len(data))

    @verb(group="audit", outside=True)
    def check(self, ctx: Context, zone: Zone = "") -> Check:
        """Read the living log from its first event to its last and compare every hash with the signed root.

        The signature of that root is checked as well.

        Example:
            falaj audit check
        """
        zone = zone or ctx.zone
        log = self._log(ctx, zone)
        tree, size, pos, finding = Frontier(), 0, "", ""
        try:
            while facts := self._ledger.tail(pos, tenant=ctx.tenant, zone=zone, limit=_PAGE):
                tree.extend(leaf_hash(fact.raw) for fact in facts[: max(0, log.head.size - size)])
                size, pos = size + len(facts), facts[-1].pos
        except Corrupt as error:
            finding = f"after {size} events: {error.message}"
        found = Check(self.sealer.origin(ctx.tenant, zone), size, log.head.size, not finding, finding)
        return _against(log.newest(), tree, found) if log.head.number else found

    @verb(group="govern")
    def enrol(
        self,
        ctx: Context,
        name: Annotated[str, "the witness's name"],
        key: Annotated[str, "its public key, base64"],
        zone: Zone = "",
    ) -> Witness:
        """Register a witness: from now on its cosignatures of checkpoints are accepted.

        Example:
            falaj audit enrol regulator "$(python -m falaj.audit.witness --name regulator --folder w key)"
        """
        zone = zone or ctx.zone
        if len(note.unb64(key)) != 32 or not note.is_witness_name(name):
            raise Invalid(
                "this is no key or no name of a witness", "a name like regulator.example and 32 bytes in base64"
            )
        ref = Ref("witness", zone, name)
        with self._ledger.write(ctx) as tx:
            old = tx.get(ref)
            record = tx.put(ref, {"name": name, "key": key}, rev=old.rev if old else None)
            tx.emit("audit.enrol", record.ref, name=name, key=key)
        return Witness(name, key, zone)

    @verb(group="audit")
    def cosign(
        self, ctx: Context, signed: Annotated[str, "the checkpoint with the witness's line added"], zone: Zone = ""
    ) -> Checkpoint:
        """Hand in a checkpoint that a witness has cosigned.

        Example:
            falaj audit cosign "$(python -m falaj.audit.witness --name regulator --folder w cosign checkpoint.txt)"
        """
        log = self._log(ctx, zone)
        held = log.checkpoint(note.parse(signed).number)
        text, fresh = note.split(signed)
        known = note.split(held.note)[1]
        if note.split(held.note)[0] != text:
            raise Conflict(
                "this is not the log's checkpoint of that number", "somebody shows the witness another log: keep both"
            )
        keys = {witness.name: witness for witness in self._witnesses(ctx, log.zone)}
        with self._ledger.write(ctx) as tx:
            for line in [line for line in fresh if line not in known]:
                name = line.split(" ")[1] if line.count(" ") == 2 else ""
                if name not in keys or not note.check(text, line, name, note.unb64(keys[name].key)):
                    raise Invalid("a signature is not that of a registered witness", "run: falaj audit enrol")
                record = tx.put(Ref("cosignature", log.zone, f"c{held.number:012d}.{name}"), {"line": line})
                tx.emit("audit.cosign", record.ref, witness=name, size=held.size)
        return self._log(ctx, log.zone).checkpoint(held.number)

    @verb(group="audit")
    def unfinished(
        self, ctx: Context, age_s: Annotated[float, "begun at least so long ago"] = 60.0, zone: Zone = ""
    ) -> tuple[Intent, ...]:
        """List acts outside the ledger that were begun and have no recorded outcome.

        Example:
            falaj audit unfinished
        """
        return self._unfinished.of(ctx.tenant, zone or ctx.zone, ctx.now() - age_s)

    @verb(reads=("ref",))
    def lineage(
        self,
        ctx: Context,
        ref: Annotated[Ref, "the thing"],
        direction: Annotated[str, "up (made from), down (went into) or both"] = "both",
        depth: Annotated[int, "how many steps; 0 is all"] = 0,
    ) -> Graph:
        """Show what a thing was made from and what was made from it.

        Example:
            falaj audit lineage model:fraud/scorer@v3 --direction up
        """
        return graphs.around(self._ledger, ctx, ref, direction, depth)

    @verb(reads=("ref",))
    def draw(
        self,
        ctx: Context,
        ref: Annotated[Ref, "the thing"],
        form: Annotated[str, "text, json, openlineage, dot or svg"] = "text",
        direction: Annotated[str, "up, down or both"] = "both",
        depth: Annotated[int, "how many steps; 0 is all"] = 0,
    ) -> str:
        """Draw the lineage of a thing.

        Example:
            falaj audit draw model:fraud/scorer@v3 --form svg > lineage.svg
        """
        graph = graphs.around(self._ledger, ctx, ref, direction, depth)
        drawn: dict[str, Callable[[], str]] = {
            "text": lambda: lines.as_tree(graph),
            "json": lambda: lines.as_json(graph),
            "openlineage": lambda: lines.as_openlineage(graph, f"falaj/{ctx.tenant}"),
            "dot": lambda: pictures.as_dot(graph),
            "svg": lambda: pictures.as_svg(graph),
        }
        if form not in drawn:
            raise Invalid(f"{form!r} is no form of a drawing", f"one of: {', '.join(FORMS)}")
        return drawn[form]()

    @verb(reads=("ref",))
    def impact(self, ctx: Context, ref: Annotated[Ref, "the thing that turned out to be wrong"]) -> Impact:
        """Say what is touched when a thing is wrong or must go: everything made from it, and where it lies.

        Example:
            falaj audit impact dataset:fraud/transactions@v3
        """
        graph = graphs.around(self._ledger, ctx, ref, lines.DOWN, limit=1_000_000)
        with self._ledger.read(ctx) as tx:
            cells = (tx.cell(Ref.parse(node.ref)) for node in graph.nodes if node.depth > 0 and not node.hidden)
            return lines.impact_of(graph, {cell.zone for cell in cells if cell})

    def seal_now(self, ctx: Context, zone: str = "") -> Checkpoint:
        """Seal at once, for callers that need a proof at once; gives the newest checkpoint."""
        zone = zone or ctx.zone
        return self.sealer.seal_all(ctx, ctx.tenant, zone) or self._log(ctx, zone).newest()

    def _facts(self, tenant: str, zone: str) -> pack.Facts:
        return lambda after, limit: self._ledger.lines(after, tenant=tenant, zone=zone, limit=min(limit, _PAGE))

    def _witnesses(self, ctx: Context, zone: str) -> list[Witness]:
        with self._ledger.read(ctx) as tx:
            records = tx.find("witness", project=zone, limit=1000).records
        return [Witness(record.body["name"], record.body["key"], zone) for record in records]


def _against(newest: Checkpoint, tree: Frontier, found: Check) -> Check:
    """What was read, held against the newest checkpoint and that against its own signature."""
    text, lines = note.split(newest.note)
    signed = any(note.check(text, line, newest.origin, note.unb64(newest.key)) for line in lines)
    finding = found.finding
    if not finding and tree.root() != note.unb64(newest.root):
        finding = f"the {tree.size} events of the ledger do not lead to the root of checkpoint {newest.number}"
    if not finding and not signed:
        finding = f"checkpoint {newest.number} is not signed by the key it names"
    return replace(found, ok=not finding, finding=finding, checkpoint=newest.number, root=newest.root, signed=signed)


def verify_pack(path: str | Path, key: str = "") -> Verdict:
    """Run the offline verifier over a file or folder, in a process of its own that sees nothing of Falaj."""
    options = ["--key", key] if key else []
    command = [sys.executable, "-I", str(pack.VERIFIER), str(path), "--json", *options]
    done = subprocess.run(  # noqa: S603 # nosec B603
        command, env=own_environment(), capture_output=True, text=True, timeout=_VERIFY_S, check=False
    )
    if not done.stdout:
        raise Invalid(done.stderr.strip()[-300:] or "the pack cannot be checked", "give an evidence pack or a proof")
    report: dict[str, Any] = json.loads(done.stdout)
    first = _words(report["first"]) if report["first"] else _UNPROVEN if report["unproven"] else ""
    return Verdict(report["ok"], report.get("events", 0), report.get("checkpoints", 0), first, done.stdout)


def _words(problem: dict[str, Any]) -> str:
    places = [f"{word} {problem[word]}" for word in ("file", "line", "event", "checkpoint") if word in problem]
    return ", ".join(places) + f": {problem['what']}" if places else str(problem["what"])


def _span(log: Log, since: float, until: float) -> pack.Span:
    """Whole checkpoints around the time asked for."""
    first = prove.number_at(log, since, after=False) if since else 0
    last = prove.number_at(log, until, after=True) if until else log.head.number
    if last <= first:
        first = max(0, last - 1)
    return pack.Span(first, last)
