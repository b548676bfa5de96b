"""What applying definitions will change and break, and how a service is read. Pure: no clock, no store.

A change of anything numbers depend on is a new version; owner, words and tags are not. Versions of a view that differ
in nothing that rows depend on share their rows. A service whose picks float follows its views by a new version.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from falaj.asof.moments import say_span
from falaj.core.data import dataclass
from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.features.compiling import check_answer, columns_of, service_plan
from falaj.features.records import Change, Definitions, EntityDef, FeatureDef, Plan, ServiceDef, ViewDef
from falaj.features.said import about, check_entity, check_service, check_view
from falaj.store.codec import to_plain, to_stable_json

Definition = EntityDef | ViewDef | ServiceDef
_WORDS: dict[str, Any] = {"about": "", "owner": "", "tags": {}}

__all__ = ["Standing", "Stood", "check", "fingerprint", "plan", "rows_shared", "service_plan", "words_only"]


@dataclass(frozen=True, slots=True)
class Stood:
    """One version as it stands."""

    ref: Ref
    """Pinned."""
    definition: Definition
    pins: tuple[str, ...] = ()
    """What it is made of, pinned: of a service its views, of a view its entity."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a plan must know of what stands."""

    newest: Mapping[str, Stood] = field(default_factory=dict)
    """The newest version of whatever definitions name or pick, by its reference without a version."""
    older: Mapping[str, ViewDef] = field(default_factory=dict)
    """Versions of views that definitions stay at (picks with @v), by pinned reference."""
    services: tuple[Stood, ...] = ()
    """Services that use one of the views: the newest version of each, and those that models pin."""
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Models, and the service versions they were trained on."""


def fingerprint(definition: Definition) -> str:
    """What two definitions share exactly when they give the same numbers under the same rules."""
    return hashlib.sha256(to_stable_json(_meaning(definition))).hexdigest()


def words_only(old: Definition, new: Definition) -> bool:
    """Whether they differ in nothing but owner, words and tags."""
    return fingerprint(old) == fingerprint(new)


def rows_shared(
    old: ViewDef, new: ViewDef, old_entity: EntityDef | None = None, new_entity: EntityDef | None = None
) -> bool:
    """Whether rows of one version are rows of the other: ttl, rules, windows, words and the view's label may differ.

    The label of a feature may not: it says where the column lies. Nor may keys, where the entity is another version.
    """
    entities = [None if one is None else (one.keys, one.subject) for one in (old_entity, new_entity)]
    return entities[0] == entities[1] and _rows_of(old) == _rows_of(new)


def check(given: Definition, *, entities: Sequence[EntityDef] = (), views: Sequence[ViewDef] = ()) -> None:
    """Invalid, naming the object, unless it can stand on these; of a service, `views` has one for each of its picks."""
    with about(f"{_kind(given)} {given.name[:200]}"):
        if isinstance(given, EntityDef):
            check_entity(given)
        elif isinstance(given, ViewDef):
            check_view(given, next((one for one in entities if one.name == given.entity), None))
        else:
            check_service(given)
            if views:
                keyed = {one.name: one for one in entities}
                check_answer(given, [(one, keyed.get(one.entity)) for one in views])


def plan(definitions: Definitions, standing: Standing) -> Plan:
    """What applying definitions will do: what changes, what that breaks, and who uses the version before."""
    world = _World(definitions, standing)
    changes = [
        *(world.entity(one) for one in definitions.entities),
        *(world.view(one) for one in definitions.views),
        *(world.service(one) for one in definitions.services),
        *world.unlisted(),
    ]
    stood = [(name, str(one.ref), fingerprint(one.definition)) for name, one in sorted(standing.newest.items())]
    digest = hashlib.sha256(to_stable_json([to_plain(definitions), stood])).hexdigest()
    return Plan(tuple(changes), digest=f"sha256:{digest}")


class _World:
    """What will stand, as far as the plan has come: entities first, then views, then services."""

    def __init__(self, definitions: Definitions, standing: Standing) -> None:
        self._standing = standing
        self._given = definitions
        self._after: dict[str, tuple[Ref, Definition]] = {
            name: (one.ref, one.definition) for name, one in standing.newest.items()
        }
        everything: list[Definition] = [*definitions.entities, *definitions.views, *definitions.services]
        names = Counter(map(_bare, everything))
        twice = next((name for name, count in names.items() if count > 1), None)
        if twice is not None:
            raise Invalid(f"{twice} is defined twice", "keep one of them")
        self._names = frozenset(names)

    def entity(self, given: EntityDef) -> Change:
        check(given)
        return self._change(given, ())

    def view(self, given: ViewDef) -> Change:
        entity = self._find(Ref("entity", *_parts(given.entity)), given)
        check(given, entities=[entity[1]])
        change = self._change(given, (str(entity[0]),))
        old = self._standing.newest.get(_bare(given))
        return change if old is None else replace(change, breaks=tuple(self._breaks(old.definition, given)))

    def service(self, given: ServiceDef) -> Change:
        found = [self._picked(pick.view, given) for pick in given.picks]
        owners = [one for ref, one in self._after.values() if isinstance(one, EntityDef)]
        check(given, entities=owners, views=[view for _, view in found])
        return self._change(given, tuple(str(ref) for ref, _ in found))

    def unlisted(self) -> Iterator[Change]:
        """What stands and the definitions do not name, but which they touch: it stays as it is."""
        for name, (ref, _) in sorted(self._after.items()):
            if name not in self._names:
                yield Change(ref, "unlisted", users=self._users(str(ref)))
        for one in self._standing.services:
            views = {pin: self._after.get(str(Ref.parse(pin).bare)) for pin in one.pins}
            late = [pin for pin, now in views.items() if now is not None and str(now[0]) != pin]
            if str(one.ref.bare) not in self._after and late:
                yield Change(one.ref, "unlisted", (f"stays at {', '.join(late)}",), users=self._users(str(one.ref)))

    def _change(self, given: Any, pins: tuple[str, ...]) -> Change:
        old = self._standing.newest.get(_bare(given))
        if old is None:
            return self._settled(Change(Ref.parse(_bare(given)).at("v1"), "new"), given)
        what = (*_differences(old.definition, given), *_moved(old.pins, pins))
        users = self._users(str(old.ref))
        if not words_only(old.definition, given) or (old.pins and set(pins) != set(old.pins)):
            ref = old.ref.at(f"v{_number(old.ref) + 1}")
            return self._settled(Change(ref, "change", what, users=users), given)
        act = "same" if to_plain(old.definition) == to_plain(given) else "describe"
        return self._settled(Change(old.ref, act, what, users=users), given)

    def _settled(self, change: Change, given: Definition) -> Change:
        self._after[_bare(given)] = (change.ref, given)
        return change

    def _find(self, ref: Ref, user: Definition) -> tuple[Ref, Any]:
        found = self._after.get(str(ref))
        if found is None:
            raise Invalid(f"{_kind(user)} {user.name}: there is no {ref}", "define it in the same file, or before")
        return found

    def _picked(self, name: str, user: ServiceDef) -> tuple[Ref, ViewDef]:
        ref = Ref.parse(f"view:{name}")
        if not ref.version:
            return self._find(ref, user)
        newest = self._after.get(str(ref.bare))
        if newest is not None and newest[0] == ref and isinstance(newest[1], ViewDef):
            return ref, newest[1]
        if str(ref) not in self._standing.older:
            raise Invalid(f"service {user.name}: there is no {ref}", "falaj features show names the versions")
        return ref, self._standing.older[str(ref)]

    def _users(self, pinned: str) -> tuple[str, ...]:
        services = {str(one.ref) for one in self._standing.services if pinned in one.pins} | {pinned}
        models = (name for name, pins in self._standing.models.items() if services & set(pins))
        return (*sorted(services - {pinned}), *sorted(models))

    def _breaks(self, old: Any, new: ViewDef) -> Iterator[str]:
        """Whoever takes a column that goes away or changes its type, and is not changed along with it."""
        before, after = columns_of(old), columns_of(new)
        lost = {name: "goes away" for name in before if name not in after}
        lost |= {name: f"becomes {after[name]}" for name in before if after.get(name, before[name]) != before[name]}
        trained = self._standing.models
        for one in sorted(self._standing.services, key=lambda stood: stood.ref):
            reasons = [f"{name}, which {lost[name]}" for name in _taken(one.definition, new.name, lost)]
            models = sorted(name for name, pins in trained.items() if str(one.ref) in pins)
            versions = [_number(other.ref) for other in self._standing.services if other.ref.bare == one.ref.bare]
            current = _number(one.ref) == max(versions)  # an older one stands only for the models that pin it
            for reason in reasons:
                if current and str(one.ref.bare) not in self._names:
                    yield f"{one.ref} uses {reason}"
                yield from (f"{model} was trained with {one.ref}, which uses {reason}" for model in models)


def _taken(service: Definition, view: str, lost: Iterable[str]) -> list[str]:
    """Which of the lost columns a service takes from wherever the view goes."""
    picks = [one for one in service.picks if one.view == view] if isinstance(service, ServiceDef) else []
    return sorted({name for pick in picks for name in lost if name in pick.columns or not pick.columns})


def _bare(definition: Definition) -> str:
    return f"{_kind(definition)}:{definition.name}"


def _parts(name: str) -> tuple[str, str]:
    project, _, rest = name.partition("/")
    return project, rest


def _number(ref: Ref) -> int:
    return int(ref.version[1:])


def _kind(definition: Definition) -> str:
    return {EntityDef: "entity", ViewDef: "view"}.get(type(definition), "service")


def _meaning(definition: Definition) -> Any:
    body = {name: value for name, value in to_plain(definition).items() if name not in _WORDS}
    if isinstance(definition, ViewDef):
        body["features"] = [_feature(one) for one in definition.features]
        body["label"] = definition.label.digest
    return body


def _feature(one: FeatureDef) -> list[object]:
    return [one.name, one.type, one.express, one.label.digest if one.label else ""]


def _rows_of(view: ViewDef) -> bytes:
    source = replace(view.source, more={})
    columns = [_feature(one) for one in view.features]
    return to_stable_json([view.entity, to_plain(source), columns, view.function, view.sealed, view.zone])


def _moved(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    before = {str(Ref.parse(pin).bare): pin for pin in old}
    for pin in dict.fromkeys(new):
        was = before.get(str(Ref.parse(pin).bare), pin)
        if was != pin:
            yield f"{was} -> @{Ref.parse(pin).version}"


def _differences(old: Definition, new: Definition) -> Iterator[str]:
    """In words, what changed; never a value that rows hold."""
    names = [name for name in type(new).__dataclass_fields__ if getattr(old, name, None) != getattr(new, name)]
    for name in names:
        before, after = getattr(old, name, None), getattr(new, name)
        if name in ("features", "windows", "keys", "picks", "computed", "request") and isinstance(before, tuple):
            yield from _listed(name, before, after)
        elif name == "ttl_us":
            yield f"ttl {_span(before)} -> {_span(after)}"
        elif name == "label" and isinstance(before, Label):
            yield f"label {before.words} -> {after.words}"
        elif name in ("online", "sealed", "zone", "entity", "subject", "owner"):
            yield f"{name} {before or 'none'} -> {after or 'none'}"
        else:
            yield f"{name} changed"


def _listed(what: str, old: Sequence[Any], new: Sequence[Any]) -> Iterator[str]:
    word = {"features": "column", "windows": "column", "picks": "view", "keys": "key"}.get(what, what)
    before, after = ({_called(one): one for one in part} for part in (old, new))
    yield from (f"{word} {name} is gone" for name in before if name not in after)
    yield from (f"{word} {name} is new" for name in after if name not in before)
    for name in after:
        if name in before and before[name] != after[name]:
            kinds = [getattr(one[name], "type", "") for one in (before, after)]
            yield f"{word} {name} changed" + (f": {kinds[0]} -> {kinds[1]}" if kinds[0] != kinds[1] else "")
    if before == after and list(before) != list(after):
        yield f"another order of {what}"


def _called(one: Any) -> str:
    hidden = " (to compute from)" if getattr(one, "hidden", False) else ""
    return f"{getattr(one, 'name', '') or one.view}{hidden}"


def _span(us: Any) -> str:
    return say_span(us) if us else "none"
