"""Reading online: a service opened once and read many times, or one read through the guard; and samples of reads."""

import math
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Annotated, Any

from falaj.asof.reading import Reader
from falaj.asof.records import STATUSES, Field, ServicePlan, ViewPlan
from falaj.asof.space_keys import encode_keys
from falaj.core.context import Context
from falaj.core.errors import Conflict, Denied, Invalid
from falaj.core.ports import Online
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.features.decide import service_plan
from falaj.features.records import OnlineKeys, Opening, Pick, ServiceDef, Values
from falaj.features.shelf import Shelf, View, define_of, need
from falaj.features.stream import face_of, shape_of, space_of
from falaj.features.unsealed import Unsealed
from falaj.govern import refusals
from falaj.store.ledger import Reader as Books

OPEN_S = 60.0
"""So long a plan is used before it is asked for again: a changed right or a moved space is known by then."""
PLAN_S = 1.0
SAMPLE_EVERY = 1000
MOST_KEYS = 10_000
MOST_ANCESTORS = 100
_READERS = 256
_FLOATS = frozenset({"float64", "float32"})


class Serving(Shelf):
    """How features are read."""

    _readers: "OrderedDict[tuple[str, str, tuple[str, ...]], tuple[Reader, Ref, dict[str, str]]]"
    _plans: dict[tuple[str, str, str], tuple[float, ServicePlan]]
    _lock: Lock
    reads = rows_read = 0
    """Since the start, through whichever door."""

    @verb(reads=("service", "model"), group="read")
    def open(
        self,
        ctx: Context,
        service: Annotated[Ref, "which service, or view"],
        model: Annotated[Ref | None, "the model that reads: it must have been trained on this very version"] = None,
    ) -> Opening:
        """Ask to read a service: gives the plan by which its features are read, and for how long it is good.

        `here.features.reader("service:fraud/scorer")` does this and keeps it fresh.

        Example:
            falaj features open service:fraud/scorer
        """
        with self._ledger.read(ctx) as tx:
            pinned = self._bound(tx, service, model)
            return Opening(self._plan(tx, ctx, pinned), ctx.now() + OPEN_S, SAMPLE_EVERY, model)

    @verb(reads=("service", "model"), group="read", once=True)
    def unlock(
        self,
        ctx: Context,
        service: Annotated[Ref, "which service, or view"],
        model: Annotated[Ref | None, "the model that reads: it must have been trained on this very version"] = None,
    ) -> OnlineKeys:
        """Give the keys that open the online rows of a service, for programs that read the online store directly.

        `here.features.reader("service:fraud/scorer")` asks for them where $FALAJ_ONLINE is set, and again every minute.
        Rows of sealed views stay closed: the platform alone opens them.

        Example:
            falaj features unlock service:fraud/scorer
        """
        with self._ledger.read(ctx) as tx:
            plan = self._plan(tx, ctx, self._bound(tx, service, model))
        spaces = sorted({view.space for view in plan.views if not view.sealed} | {space for space, _ in plan.barred})
        return OnlineKeys({space: encode_keys(self._keyring.online_keys(ctx.tenant, space)) for space in spaces})

    @verb(reads=("service", "model"), group="read", often=True)
    def read(
        self,
        ctx: Context,
        service: Annotated[Ref, "which service, or view"],
        keys: Annotated[dict[str, list[Any]], "whose: each key with a value for every row"],
        request: Annotated[dict[str, list[Any]] | None, "what only the request knows, likewise"] = None,
        model: Annotated[Ref | None, "the model that reads: it must have been trained on this very version"] = None,
    ) -> Values:
        """Read features as they are now, with a status for each: one round trip to the online store.

        Example:
            falaj features read service:fraud/scorer --keys customer_id=c1,c2
        """
        if not keys or not 0 < max(map(len, keys.values())) <= MOST_KEYS:
            raise Invalid("no keys, or too many", f"1 to {MOST_KEYS} of each", service)
        plan = self._held_plan(ctx, service) if model is None else None
        if plan is None:
            with self._ledger.read(ctx) as tx:
                plan = self._plan(tx, ctx, self._bound(tx, service, model))
        now = ctx.now()
        reader, ref, types = self._reader(ctx, plan)
        answer = reader.read(keys, request, round(now * 1e6))
        # Columns of one view mostly share one list of codes: each is put into words once.
        codes = {id(one): one for one in answer.statuses.values()}
        words = {key: [STATUSES[code] for code in one] for key, one in codes.items()}
        statuses = {name: words[id(one)] for name, one in answer.statuses.items()}
        self.reads, self.rows_read = self.reads + 1, self.rows_read + max(map(len, keys.values()))
        return Values(ref, _wired(answer.columns, types), statuses, now, types)

    @verb(reads=("model",))
    def bound(self, ctx: Context, model: Annotated[Ref, "which model"]) -> tuple[Ref, ...]:
        """The services, pinned, whose features a model was trained on: what it must be served with.

        Example:
            falaj features bound model:fraud/scorer@champion
        """
        with self._ledger.read(ctx) as tx:
            return tuple(trained_on(tx, model))

    def _reader(self, ctx: Context, plan: ServicePlan) -> tuple[Reader, Ref, dict[str, str]]:
        """What reads by a plan, whose it is, and the types of what it gives."""
        key = (ctx.tenant, plan.ref, tuple(one.space for one in plan.views) + tuple(one for one, _ in plan.barred))
        with self._lock:
            found = self._readers.get(key)
            if found is None:
                types = {one.name: one.type for one in plan.outputs}
                found = self._readers[key] = Reader(plan, self._opened(ctx, plan)), Ref.parse(plan.ref), types
            self._readers.move_to_end(key)
            if len(self._readers) > _READERS:
                self._readers.popitem(last=False)
        return found

    def _opened(self, ctx: Context, plan: ServicePlan) -> Online:
        """The online store, with rows of sealed views opened on the way out; only the house can."""
        zones = {one.space: one.zone for one in plan.views if one.sealed}
        tenant, keyring = ctx.tenant, self._keyring
        if not zones:
            return self._online(tenant)
        return Unsealed(self._online(tenant), {
            space: lambda data, aad, zone=zone: keyring.unseal(tenant, zone, data, aad)  # type: ignore[misc]
            for space, zone in zones.items()
        })  # fmt: skip

    def _bound(self, tx: Books, service: Ref, model: Ref | None) -> Ref:
        """The version to read; of a model, the one it was trained on and no other."""
        pinned = need(tx, service, "service", "view").ref
        if model is None:
            return pinned
        trained = [one for one in trained_on(tx, model) if one.bare == service.bare]
        if not trained:
            raise Conflict(
                f"{model} was not trained on {service.bare}", "publish it with its training set as an input", model
            )
        if pinned not in trained:
            names = ", ".join(map(str, trained))
            raise Conflict(f"{model} was trained on {names}, not on {pinned}", "read that version", model)
        return pinned

    def _plan(self, tx: Books, ctx: Context, pinned: Ref) -> ServicePlan:
        """All that reading takes, made anew every second: spaces stay longer than that."""
        plan = self._held_plan(ctx, pinned)
        if plan is None:
            plan = self._compiled(tx, ctx, pinned)
            with self._lock:
                if len(self._plans) > _READERS:
                    self._plans.clear()
                self._plans[ctx.tenant, str(pinned), ctx.purpose] = (time.monotonic() + PLAN_S, plan)
        return plan

    def _held_plan(self, ctx: Context, pinned: Ref) -> ServicePlan | None:
        held = self._plans.get((ctx.tenant, str(pinned), ctx.purpose))
        return held[1] if held is not None and held[0] > time.monotonic() else None

    def _moved(self) -> None:
        with self._lock:
            self._plans.clear()

    def _compiled(self, tx: Books, ctx: Context, pinned: Ref) -> ServicePlan:
        """A view by itself is read as the service of its ordinary columns."""
        if pinned.kind == "view":
            view = self._view(tx, pinned)
            columns = _ordinary(view)
            if not columns:  # a pick of none would be a pick of all
                hint = "name a service that takes them"
                raise Denied(f"every column of {pinned} has a label of its own", hint, pinned)
            picks = (Pick(f"{pinned.project}/{pinned.name}@{pinned.version}", columns),)
            service, views = ServiceDef(f"{pinned.project}/{pinned.name}", picks), {str(pinned): view}
        else:
            record = tx.need(pinned)
            service = define_of(record)
            views = {ref: self._view(tx, Ref.parse(ref)) for ref in record.body["views"]}
        plan = service_plan(service, views, str(pinned))
        split = [face for one in plan.views for face in _by_face(one, views[one.ref], ctx.tenant)]
        return replace(plan, views=tuple(split), barred=_barred(tx, ctx, plan, views))


def _ordinary(view: View) -> tuple[str, ...]:
    """What a view shows under its own label: no column with a stricter one, and no number made of such a column."""
    stricter = {one.name for one in view.definition.features if one.label is not None}
    if view.definition.windows:
        return tuple(one.name for one in view.definition.windows if one.of not in stricter)
    return tuple(one.name for one in view.definition.features if one.name not in stricter)


def trained_on(tx: Books, model: Ref) -> list[Ref]:
    """The versions of services that a model's training sets were made with, or those of the model it was made from."""
    found: set[Ref] = set()
    seen: set[Ref] = set()
    todo = [model]
    while todo and len(seen) < MOST_ANCESTORS:
        one = todo.pop()
        seen.add(one)
        for ref in map(Ref.parse, tx.need(one).body.get("inputs", {}).values()):
            made = tx.get(ref) if ref.kind == "dataset" else None
            inner = made.body.get("inputs", {}).values() if made else ()
            found |= {each for each in (ref, *map(Ref.parse, inner)) if each.kind == "service"}
            if ref.kind == "model" and ref not in seen and tx.get(ref) is not None:
                todo.append(ref)
    return sorted(found)


def _barred(tx: Books, ctx: Context, plan: ServicePlan, views: Mapping[str, View]) -> tuple[tuple[str, Field], ...]:
    """Where the keys of people lie who may not be used for the caller's purpose; nothing where nobody could be."""
    known = refusals.heads(tx, ctx.tenant, ctx.purpose)
    people = {
        asked: None
        for one in plan.views
        for own, asked in zip(views[one.ref].entity.keys, one.keys, strict=True)
        if known and own.name == views[one.ref].entity.subject
    }
    return tuple((refusals.space_of(ctx.tenant, name, field.type), field) for name in known for field in people)


def _by_face(plan: ViewPlan, view: View, tenant: str) -> list[ViewPlan]:
    """A plan for each face: columns under one label lie in one space of their own."""
    faces = {one.name: face_of(one.label) for one in view.definition.features}
    faces |= {one.name: faces.get(one.of, "") for one in view.definition.windows}
    shape, found = shape_of(view.definition), []
    for face in dict.fromkeys(faces[name] for name in plan.wanted):
        chosen = [at for at, name in enumerate(plan.wanted) if faces[name] == face]
        found.append(
            replace(
                plan,
                space=space_of(view.stream, tenant, shape, face),
                stored=tuple(Field(one.name, one.type) for one in view.definition.features if faces[one.name] == face),
                wanted=tuple(plan.wanted[at] for at in chosen),
                names=tuple(plan.names[at] for at in chosen),
                windows=tuple(one for one in view.definition.windows if faces[one.name] == face),
                face=face,
                zone=view.zone,
                sealed=view.definition.sealed,
            )
        )
    return found


def _wired(columns: dict[str, list[Any]], types: Mapping[str, str]) -> dict[str, list[Any]]:
    """Columns as JSON can say them."""
    if _FLOATS.issuperset(types.values()) and len(columns) == len(types):
        with suppress(TypeError):  # some are null
            # A sum that is finite has only finite parts; where it is not, each is looked at.
            if math.isfinite(sum(map(sum, columns.values()))):
                return columns
    return {name: _wire(columns[name], kind) for name, kind in types.items()}


def _wire(values: list[Any], kind: str) -> list[Any]:
    if kind in _FLOATS:
        return [one if one is None or one - one == 0 else repr(one) for one in values]
    if "float" in kind:
        return [None if one is None else _wire(list(one), kind[5:-1]) for one in values]
    if "bytes" in kind:
        return [_hex(one) for one in values]
    return values


def _hex(value: Any) -> Any:
    return [_hex(one) for one in value] if isinstance(value, list) else value.hex() if value is not None else None
