"""Demands: the rules a project sets for its stages, the evidence people attach, and the case a gate judges."""

import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

from falaj.catalog.gate_rules import (
    DEFAULT_RULES,
    GATED_STAGES,
    RULE_ASSESSMENT,
    RULE_ATTESTATION,
    RULE_SIGNATURE,
    RULE_ZONE,
    GateCase,
    GateRule,
    count_required_approvers,
    hash_rules,
    judge_rules,
    read_rules,
)
from falaj.catalog.lifecycle_records import GateRules, PromotionResult, VersionAttestation
from falaj.catalog.promotion_requests import (
    PROMOTE_ACTION,
    STATE_EMERGENCY,
    STATE_WAITING,
    evaluate_request,
    find_request,
)
from falaj.catalog.publish_limits import MAX_CARD_ENTRIES, MAX_LONG_TEXT, require_short_text, require_valid_tags
from falaj.catalog.service_base import CatalogServiceBase, make_companion_label, to_version
from falaj.core.context import CallContext
from falaj.core.errors import CorruptData, Denied, Invalid
from falaj.core.event import generate_id
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.approvals import make_approval_ref
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import LedgerReader
from falaj.store.records import LedgerRecord

GATE_KIND, ATTESTATION_KIND = "gate", "attestation"
"""Formats that are known to hold no code; what is not known may."""
MAX_ATTESTATIONS = 1000
_KIND_PATTERN = r"[a-z][a-z0-9._-]{0,62}"


class GateOperations(CatalogServiceBase):
    """What must be true of a version before it enters a stage, and who says that it is."""

    @operation(writes=("gate",), unpinned_params=("gate",), group="govern")
    def require(
        self,
        ctx: CallContext,
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
        if gate.kind != GATE_KIND or gate.version:
            raise Invalid(f"{gate} is no gate", "gate:PROJECT/STAGE, for example gate:fraud/production", gate)
        gate_rules = read_rules(gate.name, rules or DEFAULT_RULES.get(gate.name, ()))
        min_approvers, min_officers = count_required_approvers(gate_rules)
        with self._ledger.write(ctx) as tx:
            earlier_record = tx.get(gate)
            rule_texts = [rule.text for rule in gate_rules]
            record = tx.put(
                gate, {"rules": rule_texts, "own": bool(rules)}, rev=earlier_record.rev if earlier_record else None
            )
            tx.emit(
                "catalog.require", record.ref,
                rules="; ".join(rule_texts), digest=hash_rules(gate_rules), needs=min_approvers, dpo=min_officers,
                own=int(bool(rules)), was_own=int(earlier_record is not None and bool(earlier_record.body["own"])),
            )  # fmt: skip
        return _to_gate_rules(gate, record)

    @operation()
    def rules(self, ctx: CallContext, project: Annotated[str, "the project"]) -> tuple[GateRules, ...]:
        """Show what a project demands for each stage; where it said nothing, what the house demands.

        Example:
            falaj catalog rules fraud
        """
        gates = [Ref(GATE_KIND, project, stage) for stage in GATED_STAGES]
        with self._ledger.read(ctx) as tx:
            gate_records = tx.find(GATE_KIND, project=project, scopes=ctx.cells(GATE_KIND), limit=100).records
        records_by_gate = {record.ref.bare: record for record in gate_records}
        return tuple(_to_gate_rules(gate, records_by_gate.get(gate)) for gate in gates)

    @operation(reads=("name",), group="write")
    def attest(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which version; the newest when none is given"],
        kind: Annotated[str, "what was looked into, for example bias, security-scan or benchmark"],
        passed: Annotated[bool, "whether it is as it should be"],
        facts: Annotated[dict[str, str] | None, "what was found, and where the report lies"] = None,
        metrics: Annotated[dict[str, float] | None, "what was measured; gates compare these too"] = None,
    ) -> VersionAttestation:
        """Attach what you found out about a version, in your name. It is never changed; the newest of a kind counts.

        Example:
            falaj catalog attest model:fraud/scorer@v3 bias --passed --facts report=sha256:9f… --metrics gap=0.02
        """
        _require_valid_attestation(kind, facts or {}, metrics or {})
        with self._ledger.write(ctx) as tx:
            version = self.require_live(tx, name)
            if len(_list_attestations(tx, version.ref)) >= MAX_ATTESTATIONS:
                raise Invalid(f"{version.ref} has {MAX_ATTESTATIONS} attestations", "publish a new version", name)
            ref = Ref(ATTESTATION_KIND, version.key.project, generate_id())
            new_attestation = VersionAttestation(
                ref, version.ref, kind, passed, ctx.actor.id, ctx.now(), dict(facts or {}), dict(metrics or {})
            )
            terms = {"of": str(version.ref)}
            tx.put(
                ref,
                to_plain(new_attestation),
                label=make_companion_label(version.label),
                zone=version.zone,
                terms=terms,
            )
            tx.emit("catalog.attest", version.ref, kind=kind, passed=int(passed), attestation=ref.name)
        return new_attestation

    @operation(reads=("name",))
    def evidence(
        self, ctx: CallContext, name: Annotated[Ref, "which version; the newest when none is given"]
    ) -> tuple[VersionAttestation, ...]:
        """List what people attested of a version, oldest first.

        Example:
            falaj catalog evidence model:fraud/scorer@v3
        """
        with self._ledger.read(ctx) as tx:
            return tuple(_list_attestations(tx, self.resolve_version(tx, name)))

    @operation(reads=("name",))
    def judge(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which version; the newest when none is given"],
        stage: Annotated[str, "staging, production or retired"] = "production",
    ) -> PromotionResult:
        """Say what the gate of a stage finds of a version now, and whether people are asked. Nobody is, by this.

        The state is done (it is there), waiting or emergency (people are asked), ready (promote brings it there, or
        asks them), or refused, with what is missing: also while people are asked, if it failed since.

        Example:
            falaj catalog judge model:fraud/scorer@v7 --stage production
        """
        if stage not in GATED_STAGES:
            raise Invalid(f"{stage[:40]!r} has no gate", f"one of: {', '.join(GATED_STAGES)}", name)
        with self._ledger.read(ctx) as tx:
            record = self.require_live(tx, name)
            rules = self.read_gate_rules(tx, record.key.project, stage)
            current_version = self.read_aliases(tx, record.ref).get(stage, "")
            rule_results = judge_rules(rules, self.collect_case(tx, ctx, record, rules, stage))
            current_ref = record.ref.at(current_version) if current_version else None
            result = PromotionResult(record.ref, stage, "ready", evidence=rule_results, before=current_ref)
            failure_text = "; ".join(f"{row.rule}: {row.found}" for row in rule_results if not row.passed)
            pending_request = find_request(tx, record.ref, stage)
            if pending_request is not None and pending_request.state in (STATE_WAITING, STATE_EMERGENCY):
                approval_standing, approval = (
                    evaluate_request(tx, ctx, pending_request),
                    make_approval_ref(PROMOTE_ACTION, pending_request.digest),
                )
                result = replace(
                    result,
                    approval=approval,
                    digest=pending_request.digest,
                    until=pending_request.until or approval_standing.until,
                )
                if pending_request.state == STATE_EMERGENCY or not failure_text:
                    return replace(result, state=pending_request.state, why=approval_standing.why)
            if record.body["stage"] == stage:
                return replace(result, state="done", why=f"it is in {stage} already")
            return replace(result, state="refused", why=failure_text, ok=False) if failure_text else result

    def read_gate_rules(self, tx: LedgerReader, project: str, stage: str) -> tuple[GateRule, ...]:
        return _read_rules_of(stage, tx.get(Ref(GATE_KIND, project, stage)))

    def collect_case(
        self, tx: LedgerReader, ctx: CallContext, record: LedgerRecord, rules: tuple[GateRule, ...], stage: str
    ) -> GateCase:
        """What is known of a version, as far as these rules ask."""
        rival = self.find_rival(tx, record, stage)
        newest_attestations = {
            listed_attestation.kind: listed_attestation for listed_attestation in _list_attestations(tx, record.ref)
        }
        asked_kinds = {rule.kind for rule in rules}
        return GateCase(
            kind=record.key.kind,
            metrics=_collect_metrics(tx, record),
            holder=str(rival.ref) if rival else "",
            current=_collect_metrics(tx, rival) if rival else {},
            unsigned=_describe_missing_signature(record) if RULE_SIGNATURE in asked_kinds else "",
            unsafe=_describe_unsafe_format(record),
            attested=newest_attestations if RULE_ATTESTATION in asked_kinds else {},
            refused={zone: _find_serving_denial(ctx, record, zone) for zone in _list_rule_zones(record, rules)},
            assessed=_find_assessment(tx, record.key.project, ctx.now()) if RULE_ASSESSMENT in asked_kinds else "",
        )

    def find_rival(self, tx: LedgerReader, record: LedgerRecord, stage: str) -> LedgerRecord | None:
        """What a version is compared with: what holds the stage, else what held it last. Otherwise whoever empties a
        stage first could fill it with anything."""
        current_version = self.read_aliases(tx, record.ref).get(stage)
        earlier_versions = [
            earlier_version
            for earlier_version in reversed(self.read_trail(tx, record.ref, stage))
            if earlier_version != record.key.version
        ]
        candidates = (
            tx.get(record.ref.at(version)) for version in ([current_version] if current_version else earlier_versions)
        )
        return next(
            (candidate for candidate in candidates if candidate is not None and candidate.body["state"] == "live"), None
        )


def _list_rule_zones(record: LedgerRecord, rules: tuple[GateRule, ...]) -> set[str]:
    zone_rules = [rule for rule in rules if rule.kind == RULE_ZONE]
    return {zone for rule in zone_rules for zone in ([rule.name] if rule.name else record.body["zones"])}


def _find_serving_denial(ctx: CallContext, record: LedgerRecord, zone: str) -> str:
    """Why place() does not let it be served there; the permit itself is not used."""
    try:
        ctx.permit("serve", str(record.ref.bare), zone)
    except Denied as error:
        return error.message
    return ""


def _find_assessment(tx: LedgerReader, project: str, now: float) -> str:
    """The newest impact assessment of a project (falaj privacy assess) that is approved and not due for review."""
    today = datetime.fromtimestamp(now, UTC).date().isoformat()
    assessment_records = tx.find(
        "dpia", project=project, terms={"dpia": "yes", "state": "approved"}, newest_first=True, limit=1000
    )
    return next(
        (
            str(assessment_record.ref)
            for assessment_record in assessment_records.records
            if assessment_record.body["review_by"] >= today
        ),
        "",
    )


def _collect_metrics(tx: LedgerReader, record: LedgerRecord) -> dict[str, float]:
    """What its publisher measured, and what others measured beside that; nobody overrules the publisher unseen."""
    card = to_version(record, {}).card
    attested_metrics = {
        name: value
        for listed_attestation in _list_attestations(tx, record.ref)
        for name, value in listed_attestation.metrics.items()
    }
    return {**attested_metrics, **(card.metrics if card else {})}


def _describe_missing_signature(record: LedgerRecord) -> str:
    body = record.body
    if not body.get("signature"):
        return "it is not signed: falaj catalog publish signs the models it publishes"
    from falaj.catalog.model_signing import verify_signature

    try:
        verify_signature(body["signature"], body["key"], body.get("files", {}), str(record.ref))
    except (CorruptData, Invalid) as error:
        return error.message
    return ""


def _describe_unsafe_format(record: LedgerRecord) -> str:
    """What the platform found in its files itself; what a publisher says of them counts for nothing here."""
    from falaj.content.model_formats import SAFE_FORMATS

    inspection = record.body.get("seen")
    if inspection is None:
        return f"the platform has not looked into its files: falaj catalog inspect {record.ref}"
    if not inspection["ok"]:
        return "; ".join(inspection["reasons"])
    if inspection["code_bearing"] or inspection["format"] not in (*SAFE_FORMATS, "json", "text"):
        reasons_text = (
            "; ".join(inspection["reasons"][:3])
            or f"it is {inspection['format'][:40]}, {record.body['num_files']} files"
        )
        return f"loading it may run code ({reasons_text[:500]}): export it to safetensors, ONNX or skops"
    return ""


def _list_attestations(tx: LedgerReader, version: Ref) -> list[VersionAttestation]:
    page = tx.find(ATTESTATION_KIND, project=version.project, terms={"of": str(version)}, limit=MAX_ATTESTATIONS)
    attestations: list[VersionAttestation] = [from_plain(VersionAttestation, record.body) for record in page.records]
    return sorted(attestations, key=lambda listed_attestation: (listed_attestation.at, listed_attestation.ref.name))


def _require_valid_attestation(kind: str, facts: dict[str, str], metrics: dict[str, float]) -> None:
    if not re.fullmatch(_KIND_PATTERN, kind):
        raise Invalid(f"{kind[:80]!r} is no kind of attestation", "a word such as bias or security-scan")
    require_valid_tags(facts)
    if len(metrics) > MAX_CARD_ENTRIES:
        raise Invalid(f"{len(metrics)} metrics", f"at most {MAX_CARD_ENTRIES}")
    for name, value in metrics.items():
        require_short_text("the name of a metric", name, MAX_LONG_TEXT)
        if not math.isfinite(value):
            raise Invalid(f"{name[:80]} is {value}", "a finite number")


def _to_gate_rules(gate: Ref, record: LedgerRecord | None) -> GateRules:
    rules = _read_rules_of(gate.name, record)
    has_own_rules = record is not None and record.body["own"]
    return GateRules(gate.bare, gate.name, tuple(rule.text for rule in rules), hash_rules(rules), has_own_rules)


def _read_rules_of(stage: str, record: LedgerRecord | None) -> tuple[GateRule, ...]:
    return read_rules(
        stage, record.body["rules"] if record is not None and record.body["own"] else DEFAULT_RULES[stage]
    )
