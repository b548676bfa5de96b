"""Origins: where a version came from, who had a hand in it, and what was made from it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated

from falaj.catalog.records import Version
from falaj.catalog.shelf import Shelf, as_version, check_kind, sight
from falaj.catalog.statements import HIDDEN, Deed, Origin, Provenance, as_cyclonedx, as_json, as_slsa, as_text
from falaj.catalog.wishes import DONE, LAPSED, REFUSED
from falaj.core.context import Context
from falaj.core.errors import FalajError, Invalid
from falaj.core.event import Event
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.core.withhold import withhold_values
from falaj.store.ledger import Reader
from falaj.store.records import Record


def _drawn(told: Provenance, form: str) -> str:
    from falaj.audit import draw

    return draw.as_svg(told.graph) if form == "svg" else draw.as_dot(told.graph)


FORMS: dict[str, Callable[[Provenance], str]] = {
    "text": as_text,
    "json": as_json,
    "slsa": as_slsa,
    "cyclonedx": as_cyclonedx,
    "svg": partial(_drawn, form="svg"),
    "dot": partial(_drawn, form="dot"),
}
DEEDS = ("catalog.publish", "catalog.attest", "catalog.promote", "catalog.point", "catalog.copy", "catalog.delete")
MOST_DEEDS = 1000


class Origins(Shelf):
    """What can be told of a version's origin."""

    @verb(reads=("name",))
    def provenance(
        self,
        ctx: Context,
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
        from falaj.audit.graphs import around

        check_kind(name)
        if form not in FORMS:
            raise Invalid(f"{form!r:.40} is no form of provenance", f"one of: {', '.join(FORMS)}")
        with self._ledger.read(ctx) as tx:
            record = tx.need(self._pinned(tx, name))
            version = as_version(record, self._aliases(tx, name))
            sees = sight(self._ledger, ctx, record.ref)
            marker = ctx.withheld(record)
            used = _unnamed(_inputs(version)) if marker else _inputs(version)
            origins = tuple(self._origin(tx, role, ref, sees) for role, ref in used.items())
        signed, key = _signature(record)
        if marker:
            version = _without_values(version, marker)
        told = Provenance(
            covered(version, sees),
            origins,
            self._deeds(ctx, record.ref),
            {} if marker else record.body.get("files", {}),
            signed,
            key,
            around(self._ledger, ctx, record.ref),
        )
        return FORMS[form](told)

    def _origin(self, tx: Reader, role: str, ref: Ref, sees: Callable[[str], bool]) -> Origin:
        # Runs and what they log are written over: of the revision that was used, what it is now must do.
        record = (tx.get(ref) or tx.get(ref.bare)) if sees(str(ref)) else None
        if record is None:
            return Origin(role, HIDDEN)
        return Origin(role, str(ref), str(record.body.get("root", "")), record.label)

    def _deeds(self, ctx: Context, ref: Ref) -> tuple[Deed, ...]:
        """Who published, moved, copied and deleted it, oldest first. Asked for act by act: reads are far more."""
        where = {"kind": ref.kind, "project": ref.project, "name": ref.name, "version": ref.version}
        facts = [
            fact for act in DEEDS for fact in self._ledger.tail(tenant=ctx.tenant, limit=MOST_DEEDS, verb=act, **where)
        ]
        deeds = [deed for fact in facts if (deed := _deed(fact.event)) is not None]
        return tuple(sorted(deeds, key=lambda deed: deed.at))


def _without_values(version: Version, marker: str) -> Version:
    """A version with the structure of it alone, and the packages that its publisher's machine had."""
    shown: Version = withhold_values(version, marker)
    if version.card is None or shown.card is None or version.author.startswith("run."):
        return shown
    return replace(shown, card=replace(shown.card, environment=version.card.environment))


def _unnamed(inputs: Mapping[str, Ref]) -> dict[str, Ref]:
    """Inputs without the names of their roles, which the publisher chose and which may repeat values."""
    kept = ("code", "run")
    return {role if role in kept else f"input {number}": ref for number, (role, ref) in enumerate(inputs.items(), 1)}


def _inputs(version: Version) -> dict[str, Ref]:
    code = version.card.code.ref if version.card and version.card.code else None
    return {**version.inputs, **({"code": code} if code and "code" not in version.inputs else {})}


def covered(version: Version, sees: Callable[[str], bool]) -> Version:
    """The same without the names of what the caller may not see."""
    inputs = {role: ref for role, ref in version.inputs.items() if sees(str(ref))}
    card = version.card
    if card and card.code and card.code.ref and not sees(str(card.code.ref)):
        card = replace(card, code=replace(card.code, ref=None))
    return replace(version, inputs=inputs, card=card and replace(card, run=_shown(card.run, sees)))


def _shown(run: str, sees: Callable[[str], bool]) -> str:
    try:
        return run if not run or sees(run) else HIDDEN
    except Invalid:
        return run  # a name that another tool gave it


def _signature(record: Record) -> tuple[str, str]:
    """Whether the signature holds over the files the record names, and the key's short name."""
    bundle, pem = record.body.get("signature", ""), record.body.get("key", "")
    if not bundle:
        return "none", ""
    from falaj.catalog import signing

    try:
        signing.verify(bundle, pem, record.body.get("files", {}), str(record.ref))
    except FalajError as error:
        return error.message, signing.key_hint(pem)
    return "valid", signing.key_hint(pem)


def _deed(event: Event) -> Deed | None:
    """An event as a deed; None while it is only begun, or changed nothing."""
    body = {name: str(value) for name, value in event.body.items()}
    if body.get("phase", "done") != "done" or body.get("unchanged"):
        return None
    what = event.verb.partition(".")[2]
    if what == "promote":
        # What came of a wish is told by the word that it moved, unless it moved none; what waits is no deed yet.
        state, stage = body.get("state", ""), body.get("stage", "")
        if state not in (REFUSED, LAPSED) and (state, stage) != (DONE, "retired"):
            return None
        what = f"promote {stage}{'' if state == DONE else f': {state}, asked'}"
    elif what == "point":
        how, way = body.get("how", what), body.get("alias", "") if body.get("to") else f"out of {body.get('alias', '')}"
        hasty = {"emergency": "in an emergency, others have to ratify it, asked", "ratify": "ratified, asked"}
        what = f"promote {way}: {hasty[how]}" if how in hasty else f"{how} {way}"
    elif what == "attest":
        what = f"attest {body.get('kind', '')}: {'passed' if body.get('passed') == '1' else 'failed'},"
    approved = tuple(name for name in body.get("people", "").split(",") if name)
    return Deed(what, body.get("asker") or event.behalf or event.actor, event.at, approved, body.get("reason", ""))
