"""Demands: the rules a project sets for its stages, the evidence people attach, and the case a gate judges."""

import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

from falaj.catalog.gates import (
    ASSESSED,
    ATTESTED,
    DEFAULTS,
    GATED,
    PLACED,
    SIGNED,
    Case,
    Rule,
    digest_of_rules,
    judge,
    read_rules,
    voices,
)
from falaj.catalog.life_records import Attestation, GateRules, Promotion
from falaj.catalog.limits import LONG, MOST_ENTRIES, check_tags, check_text
from falaj.catalog.shelf import Shelf, as_version, open_label
from falaj.catalog.wishes import ACTION, EMERGENCY, WAITING, heard, kept_wish
from falaj.core.context import Context
from falaj.core.errors import Corrupt, Denied, Invalid
from falaj.core.event import new_id
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.approvals import approval_ref
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Reader
from falaj.store.records import Record

GATE, ATTESTATION = "gate", "attestation"
"""Formats that are known to hold no code; what is not known may."""
MOST_ATTESTATIONS = 1000
_KIND = r"[a-z][a-z0-9._-]{0,62}"


class Demands(Shelf):
    """What must be true of a version before it enters a stage, and who says that it is."""

    @verb(writes=("gate",), heads=("gate",), group="govern")
    def require(
        self,
        ctx: Context,
        gate: Annotated[Ref, "the gate: gate:PROJECT/STAGE, for example gate:fraud/production"],
        rules: Annotated[tuple[str, ...], "each as `falaj catalog rules` shows them; none at all: the house's own"],
    ) -> GateRules:
        """Set what a project demands of every version before it enters a stage.

        Rules are: `auc >= 0.8` (a metric against a number), `auc >= current`, `latency_ms <= 1.1 * current` (against
        the version that holds the stage), `signature`, `safe format`, `bias` or `attestation NAME` (the newest one of
        that kind passed), `dpia` (the project has an approved assessment), `zone ae-dubai` (its label may be served
        there), `2 approvals`, `1 dpo`. A model that runs
        code when it is loaded never enters production, whatever the rules say. Another set of rules voids approvals
        that were given under the old one.

        Example:
            falaj catalog require gate:fraud/production "auc >= current" signature bias "2 approvals" "1 dpo"
        """
        if gate.kind != GATE or gate.version:
            raise Invalid(f"{gate} is no gate", "gate:PROJECT/STAGE, for example gate:fraud/production", gate)
        read = read_rules(gate.name, rules or DEFAULTS.get(gate.name, ()))
        needs, officers = voices(read)
        with self._ledger.write(ctx) as tx:
            old = tx.get(gate)
            texts = [rule.text for rule in read]
            record = tx.put(gate, {"rules": texts, "own": bool(rules)}, rev=old.rev if old else None)
            tx.emit(
                "catalog.require", record.ref,
                rules="; ".join(texts), digest=digest_of_rules(read), needs=needs, dpo=officers,
                own=int(bool(rules)), was_own=int(old is not None and bool(old.body["own"])),
            )  # fmt: skip
        return _shown(gate, record)

    @verb()
    def rules(self, ctx: Context, project: Annotated[str, "the project"]) -> tuple[GateRules, ...]:
        """Show what a project demands for each stage; where it said nothing, what the house demands.

        Example:
            falaj catalog rules fraud
        """
        gates = [Ref(GATE, project, stage) for stage in GATED]
        with self._ledger.read(ctx) as tx:
            found = tx.find(GATE, project=project, cells=ctx.cells(GATE), limit=100).records
        own = {record.ref.bare: record for record in found}
        return tuple(_shown(gate, own.get(gate)) for gate in gates)

    @verb(reads=("name",), group="write")
    def attest(
        self,
        ctx: Context,
        name: Annotated[Ref, "which version; the newest when none is given"],
        kind: Annotated[str, "what was looked into, for example bias, security-scan or benchmark"],
        passed: Annotated[bool, "whether it is as it should be"],
        facts: Annotated[dict[str, str] | None, "what was found, and where the report lies"] = None,
        metrics: Annotated[dict[str, float] | None, "what was measured; gates compare these too"] = None,
    ) -> Attestation:
        """Attach what you found out about a version, in your name. It is never changed; the newest of a kind counts.

        Example:
            falaj catalog attest model:fraud/scorer@v3 bias --passed --facts report=sha256:9f… --metrics gap=0.02
        """
        _check_attestation(kind, facts or {}, metrics or {})
        with self._ledger.write(ctx) as tx:
            version = self._live(tx, name)
            if len(_attestations(tx, version.ref)) >= MOST_ATTESTATIONS:
                raise Invalid(f"{version.ref} has {MOST_ATTESTATIONS} attestations", "publish a new version", name)
            ref = Ref(ATTESTATION, version.key.project, new_id())
            made = Attestation(
                ref, version.ref, kind, passed, ctx.actor.id, ctx.now(), dict(facts or {}), dict(metrics or {})
            )
            terms = {"of": str(version.ref)}
            tx.put(ref, to_plain(made), label=open_label(version.label), zone=version.zone, terms=terms)
            tx.emit("catalog.attest", version.ref, kind=kind, passed=int(passed), attestation=ref.name)
        return made

    @verb(reads=("name",))
    def evidence(
        self, ctx: Context, name: Annotated[Ref, "which version; the newest when none is given"]
    ) -> tuple[Attestation, ...]:
        """List what people attested of a version, oldest first.

        Example:
            falaj catalog evidence model:fraud/scorer@v3
        """
        with self._ledger.read(ctx) as tx:
            return tuple(_attestations(tx, self._pinned(tx, name)))

    @verb(reads=("name",))
    def judge(
        self,
        ctx: Context,
        name: Annotated[Ref, "which version; the newest when none is given"],
        stage: Annotated[str, "staging, production or retired"] = "production",
    ) -> Promotion:
        """Say what the gate of a stage finds of a version now, and whether people are asked. Nobody is, by this.

        The state is done (it is there), waiting or emergency (people are asked), ready (promote brings it there, or
        asks them), or refused, with what is missing: also while people are asked, if it failed since.

        Example:
            falaj catalog judge model:fraud/scorer@v7 --stage production
        """
        if stage not in GATED:
            raise Invalid(f"{stage[:40]!r} has no gate", f"one of: {', '.join(GATED)}", name)
        with self._ledger.read(ctx) as tx:
            record = self._live(tx, name)
            rules = self._rules(tx, record.key.project, stage)
            holder = self._aliases(tx, record.ref).get(stage, "")
            rows = judge(rules, self._case(tx, ctx, record, rules, stage))
            before = record.ref.at(holder) if holder else None
            told = Promotion(record.ref, stage, "ready", evidence=rows, before=before)
            failed = "; ".join(f"{row.rule}: {row.found}" for row in rows if not row.passed)
            wish = kept_wish(tx, record.ref, stage)
            if wish is not None and wish.state in (WAITING, EMERGENCY):
                stands, approval = heard(tx, ctx, wish), approval_ref(ACTION, wish.digest)
                told = replace(told, approval=approval, digest=wish.digest, until=wish.until or stands.until)
                if wish.state == EMERGENCY or not failed:
                    return replace(told, state=wish.state, why=stands.why)
            if record.body["stage"] == stage:
                return replace(told, state="done", why=f"it is in {stage} already")
            return replace(told, state="refused", why=failed, ok=False) if failed else told

    def _rules(self, tx: Reader, project: str, stage: str) -> tuple[Rule, ...]:
        return _rules_of(stage, tx.get(Ref(GATE, project, stage)))

    def _case(self, tx: Reader, ctx: Context, record: Record, rules: tuple[Rule, ...], stage: str) -> Case:
        """What is known of a version, as far as these rules ask."""
        current = self._rival(tx, record, stage)
        attested = {each.kind: each for each in _attestations(tx, record.ref)}
        asked = {rule.kind for rule in rules}
        return Case(
            kind=record.key.kind,
            metrics=_metrics(tx, record),
            holder=str(current.ref) if current else "",
            current=_metrics(tx, current) if current else {},
            unsigned=_unsigned(record) if SIGNED in asked else "",
            unsafe=_unsafe(record),
            attested=attested if ATTESTED in asked else {},
            refused={zone: _refused(ctx, record, zone) for zone in _zones(record, rules)},
            assessed=_assessed(tx, record.key.project, ctx.now()) if ASSESSED in asked else "",
        )

    def _rival(self, tx: Reader, record: Record, stage: str) -> Record | None:
        """What a version is compared with: what holds the stage, else what held it last. Otherwise whoever empties a
        stage first could fill it with anything."""
        now = self._aliases(tx, record.ref).get(stage)
        past = [each for each in reversed(self._trail(tx, record.ref, stage)) if each != record.key.version]
        found = (tx.get(record.ref.at(version)) for version in ([now] if now else past))
        return next((one for one in found if one is not None and one.body["state"] == "live"), None)


def _zones(record: Record, rules: tuple[Rule, ...]) -> set[str]:
    asked = [rule for rule in rules if rule.kind == PLACED]
    return {zone for rule in asked for zone in ([rule.name] if rule.name else record.body["zones"])}


def _refused(ctx: Context, record: Record, zone: str) -> str:
    """Why place() does not let it be served there; the permit itself is not used."""
    try:
        ctx.permit("serve", str(record.ref.bare), zone)
    except Denied as error:
        return error.message
    return ""


def _assessed(tx: Reader, project: str, now: float) -> str:
    """The newest impact assessment of a project (falaj privacy assess) that is approved and not due for review."""
    today = datetime.fromtimestamp(now, UTC).date().isoformat()
    found = tx.find("dpia", project=project, terms={"dpia": "yes", "state": "approved"}, newest=True, limit=1000)
    return next((str(one.ref) for one in found.records if one.body["review_by"] >= today), "")


def _metrics(tx: Reader, record: Record) -> dict[str, float]:
    """What its publisher measured, and what others measured beside that; nobody overrules the publisher unseen."""
    card = as_version(record, {}).card
    later = {name: value for each in _attestations(tx, record.ref) for name, value in each.metrics.items()}
    return {**later, **(card.metrics if card else {})}


def _unsigned(record: Record) -> str:
    body = record.body
    if not body.get("signature"):
        return "it is not signed: falaj catalog publish signs the models it publishes"
    from falaj.catalog.signing import verify

    try:
        verify(body["signature"], body["key"], body.get("files", {}), str(record.ref))
    except (Corrupt, Invalid) as error:
        return error.message
    return ""


def _unsafe(record: Record) -> str:
    """What the platform found in its files itself; what a publisher says of them counts for nothing here."""
    from falaj.content.formats import SAFE

    seen = record.body.get("seen")
    if seen is None:
        return f"the platform has not looked into its files: falaj catalog inspect {record.ref}"
    if not seen["ok"]:
        return "; ".join(seen["reasons"])
    if seen["code_bearing"] or seen["format"] not in (*SAFE, "json", "text"):
        why = "; ".join(seen["reasons"][:3]) or f"it is {seen['format'][:40]}, {record.body['num_files']} files"
        return f"loading it may run code ({why[:500]}): export it to safetensors, ONNX or skops"
    return ""


def _attestations(tx: Reader, version: Ref) -> list[Attestation]:
    page = tx.find(ATTESTATION, project=version.project, terms={"of": str(version)}, limit=MOST_ATTESTATIONS)
    made: list[Attestation] = [from_plain(Attestation, record.body) for record in page.records]
    return sorted(made, key=lambda each: (each.at, each.ref.name))


def _check_attestation(kind: str, facts: dict[str, str], metrics: dict[str, float]) -> None:
    if not re.fullmatch(_KIND, kind):
        raise Invalid(f"{kind[:80]!r} is no kind of attestation", "a word such as bias or security-scan")
    check_tags(facts)
    if len(metrics) > MOST_ENTRIES:
        raise Invalid(f"{len(metrics)} metrics", f"at most {MOST_ENTRIES}")
    for name, value in metrics.items():
        check_text("the name of a metric", name, LONG)
        if not math.isfinite(value):
            raise Invalid(f"{name[:80]} is {value}", "a finite number")


def _shown(gate: Ref, record: Record | None) -> GateRules:
    rules = _rules_of(gate.name, record)
    own = record is not None and record.body["own"]
    return GateRules(gate.bare, gate.name, tuple(rule.text for rule in rules), digest_of_rules(rules), own)


def _rules_of(stage: str, record: Record | None) -> tuple[Rule, ...]:
    return read_rules(stage, record.body["rules"] if record is not None and record.body["own"] else DEFAULTS[stage])
