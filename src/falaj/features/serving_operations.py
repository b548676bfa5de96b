"""Reading online: a service opened once and read many times, or one read through the guard; and samples of reads."""

import math
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Annotated, Any

from falaj.asof.records import STATUS_NAMES, FeatureField, ServicePlan, ViewPlan
from falaj.asof.service_reader import ServiceReader
from falaj.asof.space_keys import encode_space_keys
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, Invalid
from falaj.core.operation import operation
from falaj.core.ports import OnlineStore
from falaj.core.ref import Ref
from falaj.features.change_planning import compile_service
from falaj.features.records import ColumnPick, FeatureValues, OnlineKeys, ServiceAccess, ServiceDef
from falaj.features.row_stream import compute_online_shape, compute_space_name, get_column_group
from falaj.features.service_base import FeatureServiceBase, StoredView, read_definition, require_definition
from falaj.features.unsealed_store import UnsealedStore
from falaj.govern import refusals
from falaj.store.ledger import LedgerReader as Books

ACCESS_TTL_S = 60.0
"""So long a plan is used before it is asked for again: a changed right or a moved space is known by then."""
PLAN_TTL_S = 1.0
SAMPLE_INTERVAL = 1000
MAX_KEYS = 10_000
MAX_ANCESTORS = 100
_MAX_READERS = 256
_FLOAT_TYPES = frozenset({"float64", "float32"})


class ServingOperations(FeatureServiceBase):
    """How features are read."""

    _readers: "OrderedDict[tuple[str, str, tuple[str, ...]], tuple[ServiceReader, Ref, dict[str, str]]]"
    _plans: dict[tuple[str, str, str], tuple[float, ServicePlan]]
    _lock: Lock
    reads = rows_read = 0
    """Since the start, through whichever door."""

    @operation(reads=("service", "model"), group="read")
    def open(
        self,
        ctx: CallContext,
        service: Annotated[Ref, "which service, or view"],
        model: Annotated[Ref | None, "the model that reads: it must have been trained on this very version"] = None,
    ) -> ServiceAccess:
        """Ask to read a service: gives the plan by which its features are read, and for how long it is good.

        `here.features.reader("service:fraud/scorer")` does this and keeps it fresh.

        Example:
            falaj features open service:fraud/scorer
        """
        with self._ledger.read(ctx) as tx:
            pinned = self._resolve_version(tx, service, model)
            return ServiceAccess(self._get_plan(tx, ctx, pinned), ctx.now() + ACCESS_TTL_S, SAMPLE_INTERVAL, model)

    @operation(reads=("service", "model"), group="read", returns_secret=True)
    def unlock(
        self,
        ctx: CallContext,
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
            plan = self._get_plan(tx, ctx, self._resolve_version(tx, service, model))
        spaces = sorted({view.space for view in plan.views if not view.sealed} | {space for space, _ in plan.barred})
        return OnlineKeys({space: encode_space_keys(self._keyring.online_keys(ctx.tenant, space)) for space in spaces})

    @operation(reads=("service", "model"), group="read", is_high_rate=True)
    def read(
        self,
        ctx: CallContext,
        service: Annotated[Ref, "which service, or view"],
        keys: Annotated[dict[str, list[Any]], "whose: each key with a value for every row"],
        request: Annotated[dict[str, list[Any]] | None, "what only the request knows, likewise"] = None,
        model: Annotated[Ref | None, "the model that reads: it must have been trained on this very version"] = None,
    ) -> FeatureValues:
        """Read features as they are now, with a status for each: one round trip to the online store.

        Example:
            falaj features read service:fraud/scorer --keys customer_id=c1,c2
        """
        if not keys or not 0 < max(map(len, keys.values())) <= MAX_KEYS:
            raise Invalid("no keys, or too many", f"1 to {MAX_KEYS} of each", service)
        plan = self._get_cached_plan(ctx, service) if model is None else None
        if plan is None:
            with self._ledger.read(ctx) as tx:
                plan = self._get_plan(tx, ctx, self._resolve_version(tx, service, model))
        now = ctx.now()
        reader, ref, types = self._get_reader(ctx, plan)
        answer = reader.read(keys, request, round(now * 1e6))
        # Columns of one view mostly share one list of codes: each is put into words once.
        codes = {id(codes_column): codes_column for codes_column in answer.statuses.values()}
        names_by_codes = {key: [STATUS_NAMES[code] for code in codes_column] for key, codes_column in codes.items()}
        statuses = {name: names_by_codes[id(codes_column)] for name, codes_column in answer.statuses.items()}
        self.reads, self.rows_read = self.reads + 1, self.rows_read + max(map(len, keys.values()))
        return FeatureValues(ref, _to_json_columns(answer.columns, types), statuses, now, types)

    @operation(reads=("model",))
    def bound(self, ctx: CallContext, model: Annotated[Ref, "which model"]) -> tuple[Ref, ...]:
        """The services, pinned, whose features a model was trained on: what it must be served with.

        Example:
            falaj features bound model:fraud/scorer@champion
        """
        with self._ledger.read(ctx) as tx:
            return tuple(list_training_services(tx, model))

    def _get_reader(self, ctx: CallContext, plan: ServicePlan) -> tuple[ServiceReader, Ref, dict[str, str]]:
        """What reads by a plan, whose it is, and the types of what it gives."""
        key = (
            ctx.tenant,
            plan.ref,
            tuple(view_plan.space for view_plan in plan.views) + tuple(view_plan for view_plan, _ in plan.barred),
        )
        with self._lock:
            cached_reader = self._readers.get(key)
            if cached_reader is None:
                types = {view_plan.name: view_plan.type for view_plan in plan.outputs}
                cached_reader = self._readers[key] = (
                    ServiceReader(plan, self._open_online_store(ctx, plan)),
                    Ref.parse(plan.ref),
                    types,
                )
            self._readers.move_to_end(key)
            if len(self._readers) > _MAX_READERS:
                self._readers.popitem(last=False)
        return cached_reader

    def _open_online_store(self, ctx: CallContext, plan: ServicePlan) -> OnlineStore:
        """The online store, with rows of sealed views opened on the way out; only the house can."""
        zones = {view_plan.space: view_plan.zone for view_plan in plan.views if view_plan.sealed}
        tenant, keyring = ctx.tenant, self._keyring
        if not zones:
            return self._get_online_store(tenant)
        return UnsealedStore(self._get_online_store(tenant), {
            space: lambda data, associated_data, zone=zone: keyring.unseal(tenant, zone, data, associated_data)  # type: ignore[misc]
            for space, zone in zones.items()
        })  # fmt: skip

    def _resolve_version(self, tx: Books, service: Ref, model: Ref | None) -> Ref:
        """The version to read; of a model, the one it was trained on and no other."""
        pinned = require_definition(tx, service, "service", "view").ref
        if model is None:
            return pinned
        trained_versions = [
            trained_version
            for trained_version in list_training_services(tx, model)
            if trained_version.bare == service.bare
        ]
        if not trained_versions:
            raise Conflict(
                f"{model} was not trained on {service.bare}", "publish it with its training set as an input", model
            )
        if pinned not in trained_versions:
            names = ", ".join(map(str, trained_versions))
            raise Conflict(f"{model} was trained on {names}, not on {pinned}", "read that version", model)
        return pinned

    def _get_plan(self, tx: Books, ctx: CallContext, pinned: Ref) -> ServicePlan:
        """All that reading takes, made anew every second: spaces stay longer than that."""
        plan = self._get_cached_plan(ctx, pinned)
        if plan is None:
            plan = self._compile_plan(tx, ctx, pinned)
            with self._lock:
                if len(self._plans) > _MAX_READERS:
                    self._plans.clear()
                self._plans[ctx.tenant, str(pinned), ctx.purpose] = (time.monotonic() + PLAN_TTL_S, plan)
        return plan

    def _get_cached_plan(self, ctx: CallContext, pinned: Ref) -> ServicePlan | None:
        cached = self._plans.get((ctx.tenant, str(pinned), ctx.purpose))
        return cached[1] if cached is not None and cached[0] > time.monotonic() else None

    def _clear_plans(self) -> None:
        with self._lock:
            self._plans.clear()

    def _compile_plan(self, tx: Books, ctx: CallContext, pinned: Ref) -> ServicePlan:
        """A view by itself is read as the service of its ordinary columns."""
        if pinned.kind == "view":
            view = self._read_view(tx, pinned)
            columns = _list_ordinary_columns(view)
            if not columns:  # a pick of none would be a pick of all
                hint = "name a service that takes them"
                raise Denied(f"every column of {pinned} has a label of its own", hint, pinned)
            picks = (ColumnPick(f"{pinned.project}/{pinned.name}@{pinned.version}", columns),)
            service, views = ServiceDef(f"{pinned.project}/{pinned.name}", picks), {str(pinned): view}
        else:
            record = tx.need(pinned)
            service = read_definition(record)
            views = {ref: self._read_view(tx, Ref.parse(ref)) for ref in record.body["views"]}
        plan = compile_service(service, views, str(pinned))
        group_plans = [
            group_plan
            for view_plan in plan.views
            for group_plan in _split_by_group(view_plan, views[view_plan.ref], ctx.tenant)
        ]
        return replace(plan, views=tuple(group_plans), barred=_list_barred_keys(tx, ctx, plan, views))


def _list_ordinary_columns(view: StoredView) -> tuple[str, ...]:
    """What a view shows under its own label: no column with a stricter one, and no number made of such a column."""
    stricter_columns = {column.name for column in view.definition.features if column.label is not None}
    if view.definition.windows:
        return tuple(column.name for column in view.definition.windows if column.of not in stricter_columns)
    return tuple(column.name for column in view.definition.features if column.name not in stricter_columns)


def list_training_services(tx: Books, model: Ref) -> list[Ref]:
    """The versions of services that a model's training sets were made with, or those of the model it was made from."""
    services: set[Ref] = set()
    visited: set[Ref] = set()
    pending = [model]
    while pending and len(visited) < MAX_ANCESTORS:
        model_ref = pending.pop()
        visited.add(model_ref)
        for ref in map(Ref.parse, tx.need(model_ref).body.get("inputs", {}).values()):
            dataset = tx.get(ref) if ref.kind == "dataset" else None
            dataset_inputs = dataset.body.get("inputs", {}).values() if dataset else ()
            services |= {
                input_ref for input_ref in (ref, *map(Ref.parse, dataset_inputs)) if input_ref.kind == "service"
            }
            if ref.kind == "model" and ref not in visited and tx.get(ref) is not None:
                pending.append(ref)
    return sorted(services)


def _list_barred_keys(
    tx: Books, ctx: CallContext, plan: ServicePlan, views: Mapping[str, StoredView]
) -> tuple[tuple[str, FeatureField], ...]:
    """Where the keys of people lie who may not be used for the caller's purpose; nothing where nobody could be."""
    refusal_heads = refusals.read_heads(tx, ctx.tenant, ctx.purpose)
    person_fields = {
        requested_field: None
        for view_plan in plan.views
        for entity_key, requested_field in zip(views[view_plan.ref].entity.keys, view_plan.keys, strict=True)
        if refusal_heads and entity_key.name == views[view_plan.ref].entity.subject
    }
    return tuple(
        (refusals.hash_refused_space(ctx.tenant, name, field.type), field)
        for name in refusal_heads
        for field in person_fields
    )


def _split_by_group(plan: ViewPlan, view: StoredView, tenant: str) -> list[ViewPlan]:
    """A plan for each face: columns under one label lie in one space of their own."""
    group_by_column = {column.name: get_column_group(column.label) for column in view.definition.features}
    group_by_column |= {column.name: group_by_column.get(column.of, "") for column in view.definition.windows}
    shape, group_plans = compute_online_shape(view.definition), []
    for group in dict.fromkeys(group_by_column[name] for name in plan.wanted):
        positions = [position for position, name in enumerate(plan.wanted) if group_by_column[name] == group]
        group_plans.append(
            replace(
                plan,
                space=compute_space_name(view.stream, tenant, shape, group),
                stored=tuple(
                    FeatureField(column.name, column.type)
                    for column in view.definition.features
                    if group_by_column[column.name] == group
                ),
                wanted=tuple(plan.wanted[position] for position in positions),
                names=tuple(plan.names[position] for position in positions),
                windows=tuple(column for column in view.definition.windows if group_by_column[column.name] == group),
                face=group,
                zone=view.zone,
                sealed=view.definition.sealed,
            )
        )
    return group_plans


def _to_json_columns(columns: dict[str, list[Any]], types: Mapping[str, str]) -> dict[str, list[Any]]:
    """Columns as JSON can say them."""
    if _FLOAT_TYPES.issuperset(types.values()) and len(columns) == len(types):
        with suppress(TypeError):  # some are null
            # A sum that is finite has only finite parts; where it is not, each is looked at.
            if math.isfinite(sum(map(sum, columns.values()))):
                return columns
    return {name: _to_json_values(columns[name], kind) for name, kind in types.items()}


def _to_json_values(values: list[Any], kind: str) -> list[Any]:
    if kind in _FLOAT_TYPES:
        return [item if item is None or item - item == 0 else repr(item) for item in values]
    if "float" in kind:
        return [None if item is None else _to_json_values(list(item), kind[5:-1]) for item in values]
    if "bytes" in kind:
        return [_to_hex(item) for item in values]
    return values


def _to_hex(value: Any) -> Any:
    return [_to_hex(item) for item in value] if isinstance(value, list) else value.hex() if value is not None else None
