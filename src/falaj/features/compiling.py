"""A service compiled to what readers need: names in the answer, types, one plan for each view and key. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from falaj.asof.records import Field, ServicePlan, ViewPlan
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.features.records import EntityDef, Pick, ServiceDef, ViewDef
from falaj.features.said import about, check_computed


class Viewed(Protocol):
    """A version of a view, as its shelf holds it."""

    @property
    def definition(self) -> ViewDef: ...
    @property
    def entity(self) -> EntityDef: ...


class Column(NamedTuple):
    """One column of the answer, or one that is read for what is computed alone."""

    pick: int
    """Which pick it comes of."""
    of: str
    name: str
    type: str
    hidden: bool


def columns_of(view: ViewDef) -> dict[str, str]:
    """What a view serves: its windows where it has some, else its features."""
    return {one.name: one.type for one in (view.windows or view.features)}


def service_plan(
    service: ServiceDef, views: Mapping[str, Viewed], ref: str, spaces: Mapping[str, str] | None = None
) -> ServicePlan:
    """All that reading a service takes. `views` are the versions it is pinned to, by pinned reference."""
    refs = [_version(pick, views) for pick in service.picks]
    found = [(views[one].definition, views[one].entity) for one in refs]
    columns = check_answer(service, found)
    plans: dict[tuple[str, tuple[Field, ...]], ViewPlan] = {}
    for at, (pick, (view, entity)) in enumerate(zip(service.picks, found, strict=True)):
        keys = _keys(pick, entity)
        own = [one for one in columns if one.pick == at]
        fresh = ViewPlan(
            ref=refs[at],
            space=(spaces or {}).get(refs[at], ""),
            keys=keys,
            stored=tuple(Field(one.name, one.type) for one in view.features),
            wanted=(),
            names=(),
            ttl_us=view.ttl_us,
            windows=view.windows,
            sealed=view.sealed,
        )
        known = plans.get((refs[at], keys), fresh)
        wanted, names = (*known.wanted, *(one.of for one in own)), (*known.names, *(one.name for one in own))
        plans[refs[at], keys] = replace(known, wanted=wanted, names=names)
    shown = [Field(one.name, one.type) for one in columns if not one.hidden]
    outputs = (*shown, *(one for computed in service.computed for one in computed.outputs))
    return ServicePlan(ref, tuple(plans.values()), service.request, service.computed, outputs)


def check_answer(service: ServiceDef, views: Sequence[tuple[ViewDef, EntityDef | None]]) -> list[Column]:
    """The columns of the answer under their names, and those only computed from; Invalid where it cannot be.

    `views` are those of the picks, one each. Where two views have a column of one name, both become view__column.
    """
    if len(views) != len(service.picks):
        raise Invalid("not every view it picks is known", "name the views of all its picks")
    shown = _clashes(service, [one for one in _columns(service, views) if not one.hidden])
    held = {one.name: one for one in shown}
    for one in _columns(service, views):
        if one.hidden and one.name not in held:
            held[one.name] = one
        elif one.hidden and _origin(service, held[one.name]) != _origin(service, one):
            hint = "give one of them another name: .renamed()"
            raise Invalid(f"{one.name} is read for what is computed, and another column has its name", hint)
    _check_rest(service, views, list(held.values()))
    return list(held.values())


def _columns(service: ServiceDef, views: Sequence[tuple[ViewDef, EntityDef | None]]) -> Iterator[Column]:
    for at, (pick, (view, entity)) in enumerate(zip(service.picks, views, strict=True)):
        served = columns_of(view)
        keys = served if entity is None else {one.name: one.type for one in entity.keys}
        strange = [name for name in (*pick.columns, *pick.names) if name not in served]
        strange += [name for name in pick.keys if entity is not None and name not in keys]
        if strange:
            raise Invalid(f"view {pick.view} has no {strange[0]!r}", f"it has {', '.join([*served, *keys])}")
        for name in pick.columns or served:
            yield Column(at, name, pick.names.get(name, name), served[name], pick.hidden)


def _clashes(service: ServiceDef, columns: list[Column]) -> list[Column]:
    """The same with names that are there once: view__column where a name was not chosen and two have it."""
    names = Counter(one.name for one in columns)
    found = []
    for one in columns:
        pick = service.picks[one.pick]
        if names[one.name] > 1 and one.of not in pick.names:
            one = one._replace(name=f"{pick.view.partition('@')[0].partition('/')[2]}__{one.of}")  # noqa: PLW2901
        found.append(one)
    twice = next((name for name, count in Counter(one.name for one in found).items() if count > 1), None)
    if twice is not None:
        raise Invalid(
            f"{twice} is in the answer twice", f"give it another name: .renamed({twice.rpartition('__')[2]}='…')"
        )
    return found


def _check_rest(
    service: ServiceDef, views: Sequence[tuple[ViewDef, EntityDef | None]], columns: Sequence[Column]
) -> None:
    """Keys, request fields and what is computed, against the columns."""
    types = {one.name: one.type for one in columns}
    keys: dict[str, str] = {}
    for pick, (_, entity) in zip(service.picks, views, strict=True):
        for key in _keys(pick, entity) if entity else ():
            if keys.setdefault(key.name, key.type) != key.type:
                raise Invalid(f"the key {key.name} is of two types", "tell them apart: .by(customer_id='payer_id')")
    request = {one.name: one.type for one in service.request}
    made = Counter(one.name for computed in service.computed for one in computed.outputs)
    for name in (*request, *made, *keys):
        if name in types or made[name] > 1 or sum(name in part for part in (request, made, keys)) > 1:
            raise Invalid(f"{name} is the name of two things", "give the column another name: .renamed()")
    for computed in service.computed:
        with about(f"on demand {computed.name}"):
            lost = [name for name in computed.inputs if name not in types and name not in request]
            if lost:
                raise Invalid(f"its input {lost[0]} is not there", "name it among its inputs")
            check_computed(computed, {**types, **request})


def _origin(service: ServiceDef, column: Column) -> tuple[object, ...]:
    pick = service.picks[column.pick]
    return pick.view, sorted(pick.keys.items()), column.of


def _keys(pick: Pick, entity: EntityDef) -> tuple[Field, ...]:
    return tuple(Field(pick.keys.get(one.name, one.name), one.type) for one in entity.keys)


def _version(pick: Pick, views: Mapping[str, Viewed]) -> str:
    """The pinned reference a pick means: its own version, or the newest there is of a view that floats."""
    wanted = Ref.parse(f"view:{pick.view}")
    known = [ref for ref in map(Ref.parse, views) if ref == wanted or (not wanted.version and ref.bare == wanted)]
    if not known:
        raise Invalid(f"the view {pick.view} is not among those of the service", "apply its definition again")
    return str(max(known, key=lambda ref: int(ref.version[1:])))
