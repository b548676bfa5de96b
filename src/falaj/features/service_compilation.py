"""A service compiled to what readers need: names in the answer, types, one plan for each view and key. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from falaj.asof.records import FeatureField, ServicePlan, ViewPlan
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.features.records import ColumnPick, EntityDef, ServiceDef, ViewDef
from falaj.features.validation import check_computed, prefix_errors


class ViewLike(Protocol):
    """A version of a view, as its shelf holds it."""

    @property
    def definition(self) -> ViewDef: ...
    @property
    def entity(self) -> EntityDef: ...


class AnswerColumn(NamedTuple):
    """One column of the answer, or one that is read for what is computed alone."""

    pick: int
    """Which pick it comes of."""
    of: str
    name: str
    type: str
    hidden: bool


def list_served_columns(view: ViewDef) -> dict[str, str]:
    """What a view serves: its windows where it has some, else its features."""
    return {column.name: column.type for column in (view.windows or view.features)}


def compile_service(
    service: ServiceDef, views: Mapping[str, ViewLike], ref: str, spaces: Mapping[str, str] | None = None
) -> ServicePlan:
    """All that reading a service takes. `views` are the versions it is pinned to, by pinned reference."""
    refs = [_resolve_version(pick, views) for pick in service.picks]
    picked_views = [(views[column].definition, views[column].entity) for column in refs]
    columns = check_answer(service, picked_views)
    plans: dict[tuple[str, tuple[FeatureField, ...]], ViewPlan] = {}
    for pick_index, (pick, (view, entity)) in enumerate(zip(service.picks, picked_views, strict=True)):
        keys = _list_request_keys(pick, entity)
        own_columns = [column for column in columns if column.pick == pick_index]
        new_plan = ViewPlan(
            ref=refs[pick_index],
            space=(spaces or {}).get(refs[pick_index], ""),
            keys=keys,
            stored=tuple(FeatureField(column.name, column.type) for column in view.features),
            wanted=(),
            names=(),
            ttl_us=view.ttl_us,
            windows=view.windows,
            sealed=view.sealed,
        )
        view_plan = plans.get((refs[pick_index], keys), new_plan)
        selected, names = (
            (*view_plan.wanted, *(column.of for column in own_columns)),
            (*view_plan.names, *(column.name for column in own_columns)),
        )
        plans[refs[pick_index], keys] = replace(view_plan, wanted=selected, names=names)
    shown_fields = [FeatureField(column.name, column.type) for column in columns if not column.hidden]
    outputs = (*shown_fields, *(column for computed in service.computed for column in computed.outputs))
    return ServicePlan(ref, tuple(plans.values()), service.request, service.computed, outputs)


def check_answer(service: ServiceDef, views: Sequence[tuple[ViewDef, EntityDef | None]]) -> list[AnswerColumn]:
    """The columns of the answer under their names, and those only computed from; Invalid where it cannot be.

    `views` are those of the picks, one each. Where two views have a column of one name, both become view__column.
    """
    if len(views) != len(service.picks):
        raise Invalid("not every view it picks is known", "name the views of all its picks")
    shown_columns = _resolve_name_clashes(
        service, [column for column in _iterate_columns(service, views) if not column.hidden]
    )
    columns_by_name = {column.name: column for column in shown_columns}
    for column in _iterate_columns(service, views):
        if column.hidden and column.name not in columns_by_name:
            columns_by_name[column.name] = column
        elif column.hidden and _get_column_origin(service, columns_by_name[column.name]) != _get_column_origin(
            service, column
        ):
            hint = "give one of them another name: .renamed()"
            raise Invalid(f"{column.name} is read for what is computed, and another column has its name", hint)
    _check_other_names(service, views, list(columns_by_name.values()))
    return list(columns_by_name.values())


def _iterate_columns(service: ServiceDef, views: Sequence[tuple[ViewDef, EntityDef | None]]) -> Iterator[AnswerColumn]:
    for pick_index, (pick, (view, entity)) in enumerate(zip(service.picks, views, strict=True)):
        served_columns = list_served_columns(view)
        keys = served_columns if entity is None else {key.name: key.type for key in entity.keys}
        unexpected = [name for name in (*pick.columns, *pick.names) if name not in served_columns]
        unexpected += [name for name in pick.keys if entity is not None and name not in keys]
        if unexpected:
            raise Invalid(f"view {pick.view} has no {unexpected[0]!r}", f"it has {', '.join([*served_columns, *keys])}")
        for name in pick.columns or served_columns:
            yield AnswerColumn(pick_index, name, pick.names.get(name, name), served_columns[name], pick.hidden)


def _resolve_name_clashes(service: ServiceDef, columns: list[AnswerColumn]) -> list[AnswerColumn]:
    """The same with names that are there once: view__column where a name was not chosen and two have it."""
    names = Counter(column.name for column in columns)
    renamed_columns = []
    for column in columns:
        pick = service.picks[column.pick]
        if names[column.name] > 1 and column.of not in pick.names:
            column = column._replace(name=f"{pick.view.partition('@')[0].partition('/')[2]}__{column.of}")  # noqa: PLW2901
        renamed_columns.append(column)
    duplicate = next(
        (name for name, count in Counter(column.name for column in renamed_columns).items() if count > 1), None
    )
    if duplicate is not None:
        raise Invalid(
            f"{duplicate} is in the answer twice",
            f"give it another name: .renamed({duplicate.rpartition('__')[2]}='…')",
        )
    return renamed_columns


def _check_other_names(
    service: ServiceDef, views: Sequence[tuple[ViewDef, EntityDef | None]], columns: Sequence[AnswerColumn]
) -> None:
    """Keys, request fields and what is computed, against the columns."""
    types = {field.name: field.type for field in columns}
    keys: dict[str, str] = {}
    for pick, (_, entity) in zip(service.picks, views, strict=True):
        for key in _list_request_keys(pick, entity) if entity else ():
            if keys.setdefault(key.name, key.type) != key.type:
                raise Invalid(f"the key {key.name} is of two types", "tell them apart: .by(customer_id='payer_id')")
    request = {field.name: field.type for field in service.request}
    computed_names = Counter(field.name for computed in service.computed for field in computed.outputs)
    for name in (*request, *computed_names, *keys):
        if (
            name in types
            or computed_names[name] > 1
            or sum(name in name_group for name_group in (request, computed_names, keys)) > 1
        ):
            raise Invalid(f"{name} is the name of two things", "give the column another name: .renamed()")
    for computed in service.computed:
        with prefix_errors(f"on demand {computed.name}"):
            missing = [name for name in computed.inputs if name not in types and name not in request]
            if missing:
                raise Invalid(f"its input {missing[0]} is not there", "name it among its inputs")
            check_computed(computed, {**types, **request})


def _get_column_origin(service: ServiceDef, column: AnswerColumn) -> tuple[object, ...]:
    pick = service.picks[column.pick]
    return pick.view, sorted(pick.keys.items()), column.of


def _list_request_keys(pick: ColumnPick, entity: EntityDef) -> tuple[FeatureField, ...]:
    return tuple(FeatureField(pick.keys.get(key.name, key.name), key.type) for key in entity.keys)


def _resolve_version(pick: ColumnPick, views: Mapping[str, ViewLike]) -> str:
    """The pinned reference a pick means: its own version, or the newest there is of a view that floats."""
    picked_ref = Ref.parse(f"view:{pick.view}")
    candidates = [
        ref for ref in map(Ref.parse, views) if ref == picked_ref or (not picked_ref.version and ref.bare == picked_ref)
    ]
    if not candidates:
        raise Invalid(f"the view {pick.view} is not among those of the service", "apply its definition again")
    return str(max(candidates, key=lambda ref: int(ref.version[1:])))
