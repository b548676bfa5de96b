"""Origins: where a version came from, who had a hand in it, and what was made from it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated

from falaj.catalog.promotion_requests import STATE_DONE, STATE_LAPSED, STATE_REFUSED
from falaj.catalog.provenance_statements import (
    HIDDEN_NAME,
    ProvenanceAct,
    ProvenanceOrigin,
    VersionProvenance,
    to_cyclonedx,
    to_json_text,
    to_plain_text,
    to_slsa,
)
from falaj.catalog.records import CatalogVersion
from falaj.catalog.service_base import CatalogServiceBase, create_visibility_check, require_catalog_kind, to_version
from falaj.core.context import CallContext
from falaj.core.errors import FalajError, Invalid
from falaj.core.event import Event
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.core.withholding import withhold_values
from falaj.store.ledger import LedgerReader
from falaj.store.records import LedgerRecord


def _draw_provenance(_provenance: VersionProvenance, form: str) -> str:
    from falaj.audit import lineage_drawing

    return lineage_drawing.to_svg(_provenance.graph) if form == "svg" else lineage_drawing.to_dot(_provenance.graph)


WRITERS_BY_FORM: dict[str, Callable[[VersionProvenance], str]] = {
    "text": to_plain_text,
    "json": to_json_text,
    "slsa": to_slsa,
    "cyclonedx": to_cyclonedx,
    "svg": partial(_draw_provenance, form="svg"),
    "dot": partial(_draw_provenance, form="dot"),
}
ACT_OPERATIONS = (
    "catalog.publish",
    "catalog.attest",
    "catalog.promote",
    "catalog.point",
    "catalog.copy",
    "catalog.delete",
)
MAX_ACTS_PER_OPERATION = 1000


class ProvenanceOperations(CatalogServiceBase):
    """What can be told of a version's origin."""

    @operation(reads=("name",))
    def provenance(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which version; the newest when none is given"],
        form: Annotated[str, "text, json, slsa, cyclonedx, svg or dot"] = "text",
    ) -> str:
        """Tell where a version came from: data, code, environment, parameters, metrics, run, people; and who uses it.

        `slsa` is an in-toto statement with SLSA provenance, `cyclonedx` a bill of materials with a model card, `svg`
        and `dot` draw the lineage. What you may not see is shown as hidden. Parameters, metrics, texts and paths
        of files of a labelled version are left out where you may not read it.

        Example:
            falaj catalog provenance model:fraud/scorer@v7 --form cyclonedx > bom.json
        """
        from falaj.audit.lineage_graphs import find_visible_graph

        require_catalog_kind(name)
        if form not in WRITERS_BY_FORM:
            raise Invalid(f"{form!r:.40} is no form of provenance", f"one of: {', '.join(WRITERS_BY_FORM)}")
        with self._ledger.read(ctx) as tx:
            record = tx.need(self.resolve_version(tx, name))
            version = to_version(record, self.read_aliases(tx, name))
            can_see = create_visibility_check(self._ledger, ctx, record.ref)
            marker = ctx.withheld(record)
            used_inputs = _hide_role_names(_list_inputs(version)) if marker else _list_inputs(version)
            origins = tuple(self.read_origin(tx, role, ref, can_see) for role, ref in used_inputs.items())
        signature_state, key = _check_signature(record)
        if marker:
            version = _without_values(version, marker)
        version_provenance = VersionProvenance(
            hide_unseen(version, can_see),
            origins,
            self.list_acts(ctx, record.ref),
            {} if marker else record.body.get("files", {}),
            signature_state,
            key,
            find_visible_graph(self._ledger, ctx, record.ref),
        )
        return WRITERS_BY_FORM[form](version_provenance)

    def read_origin(self, tx: LedgerReader, role: str, ref: Ref, can_see: Callable[[str], bool]) -> ProvenanceOrigin:
        # Runs and what they log are written over: of the revision that was used, what it is now must do.
        record = (tx.get(ref) or tx.get(ref.bare)) if can_see(str(ref)) else None
        if record is None:
            return ProvenanceOrigin(role, HIDDEN_NAME)
        return ProvenanceOrigin(role, str(ref), str(record.body.get("root", "")), record.label)

    def list_acts(self, ctx: CallContext, ref: Ref) -> tuple[ProvenanceAct, ...]:
        """Who published, moved, copied and deleted it, oldest first. Asked for act by act: reads are far more."""
        filters = {"kind": ref.kind, "project": ref.project, "name": ref.name, "version": ref.version}
        logged_events = [
            logged_event
            for act_operation in ACT_OPERATIONS
            for logged_event in self._ledger.tail(
                tenant=ctx.tenant, limit=MAX_ACTS_PER_OPERATION, verb=act_operation, **filters
            )
        ]
        version_acts = [
            version_act for logged_event in logged_events if (version_act := _to_act(logged_event.event)) is not None
        ]
        return tuple(sorted(version_acts, key=lambda version_act: version_act.at))


def _without_values(version: CatalogVersion, marker: str) -> CatalogVersion:
    """A version with the structure of it alone, and the packages that its publisher's machine had."""
    structure_only: CatalogVersion = withhold_values(version, marker)
    if version.card is None or structure_only.card is None or version.author.startswith("run."):
        return structure_only
    return replace(structure_only, card=replace(structure_only.card, environment=version.card.environment))


def _hide_role_names(inputs: Mapping[str, Ref]) -> dict[str, Ref]:
    """Inputs without the names of their roles, which the publisher chose and which may repeat values."""
    shown_roles = ("code", "run")
    return {
        role if role in shown_roles else f"input {number}": ref for number, (role, ref) in enumerate(inputs.items(), 1)
    }


def _list_inputs(version: CatalogVersion) -> dict[str, Ref]:
    code = version.card.code.ref if version.card and version.card.code else None
    return {**version.inputs, **({"code": code} if code and "code" not in version.inputs else {})}


def hide_unseen(version: CatalogVersion, can_see: Callable[[str], bool]) -> CatalogVersion:
    """The same without the names of what the caller may not see."""
    inputs = {role: ref for role, ref in version.inputs.items() if can_see(str(ref))}
    card = version.card
    if card and card.code and card.code.ref and not can_see(str(card.code.ref)):
        card = replace(card, code=replace(card.code, ref=None))
    return replace(version, inputs=inputs, card=card and replace(card, run=_show_run(card.run, can_see)))


def _show_run(run: str, can_see: Callable[[str], bool]) -> str:
    try:
        return run if not run or can_see(run) else HIDDEN_NAME
    except Invalid:
        return run  # a name that another tool gave it


def _check_signature(record: LedgerRecord) -> tuple[str, str]:
    """Whether the signature holds over the files the record names, and the key's short name."""
    bundle, pem = record.body.get("signature", ""), record.body.get("key", "")
    if not bundle:
        return "none", ""
    from falaj.catalog import model_signing

    try:
        model_signing.verify_signature(bundle, pem, record.body.get("files", {}), str(record.ref))
    except FalajError as error:
        return error.message, model_signing.compute_key_hint(pem)
    return "valid", model_signing.compute_key_hint(pem)


def _to_act(event: Event) -> ProvenanceAct | None:
    """An event as a deed; None while it is only begun, or changed nothing."""
    body = {name: str(value) for name, value in event.body.items()}
    if body.get("phase", "done") != "done" or body.get("unchanged"):
        return None
    act_text = event.verb.partition(".")[2]
    if act_text == "promote":
        # What came of a wish is told by the word that it moved, unless it moved none; what waits is no deed yet.
        state, stage = body.get("state", ""), body.get("stage", "")
        if state not in (STATE_REFUSED, STATE_LAPSED) and (state, stage) != (STATE_DONE, "retired"):
            return None
        act_text = f"promote {stage}{'' if state == STATE_DONE else f': {state}, asked'}"
    elif act_text == "point":
        move_kind, alias_text = (
            body.get("how", act_text),
            body.get("alias", "") if body.get("to") else f"out of {body.get('alias', '')}",
        )
        emergency_texts = {"emergency": "in an emergency, others have to ratify it, asked", "ratify": "ratified, asked"}
        act_text = (
            f"promote {alias_text}: {emergency_texts[move_kind]}"
            if move_kind in emergency_texts
            else f"{move_kind} {alias_text}"
        )
    elif act_text == "attest":
        act_text = f"attest {body.get('kind', '')}: {'passed' if body.get('passed') == '1' else 'failed'},"
    approvers = tuple(name for name in body.get("people", "").split(",") if name)
    return ProvenanceAct(
        act_text, body.get("asker") or event.behalf or event.actor, event.at, approvers, body.get("reason", "")
    )
