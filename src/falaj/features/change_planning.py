"""What applying definitions will change and break, and how a service is read. Pure: no clock, no store.

A change of anything numbers depend on is a new version; owner, words and tags are not. Versions of a view that differ
in nothing that rows depend on share their rows. A service whose picks float follows its views by a new version.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from falaj.asof.moments import format_span
from falaj.core.data import dataclass
from falaj.core.errors import Invalid
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.features.records import ChangePlan, DefinitionSet, EntityDef, FeatureDef, PlannedChange, ServiceDef, ViewDef
from falaj.features.service_compilation import check_answer, compile_service, list_served_columns
from falaj.features.validation import check_entity, check_service, check_view, prefix_errors
from falaj.store.codec import to_plain, to_stable_json

Definition = EntityDef | ViewDef | ServiceDef
_DESCRIPTIVE_FIELDS: dict[str, Any] = {"about": "", "owner": "", "tags": {}}

__all__ = [
    "DefinitionState",
    "StoredDefinition",
    "check_definition",
    "compile_service",
    "differs_in_words_only",
    "fingerprint_definition",
    "plan_changes",
    "shares_rows",
]


@dataclass(frozen=True, slots=True)
class StoredDefinition:
    """One version as it stands."""

    ref: Ref
    """Pinned."""
    definition: Definition
    pins: tuple[str, ...] = ()
    """What it is made of, pinned: of a service its views, of a view its entity."""


@dataclass(frozen=True, slots=True)
class DefinitionState:
    """What a plan must know of what stands."""

    newest: Mapping[str, StoredDefinition] = field(default_factory=dict)
    """The newest version of whatever definitions name or pick, by its reference without a version."""
    older: Mapping[str, ViewDef] = field(default_factory=dict)
    """Versions of views that definitions stay at (picks with @v), by pinned reference."""
    services: tuple[StoredDefinition, ...] = ()
    """Services that use one of the views: the newest version of each, and those that models pin."""
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Models, and the service versions they were trained on."""


def fingerprint_definition(definition: Definition) -> str:
    """What two definitions share exactly when they give the same numbers under the same rules."""
    return hashlib.sha256(to_stable_json(_to_fingerprint_body(definition))).hexdigest()


def differs_in_words_only(old: Definition, new: Definition) -> bool:
    """Whether they differ in nothing but owner, words and tags."""
    return fingerprint_definition(old) == fingerprint_definition(new)


def shares_rows(
    old: ViewDef, new: ViewDef, old_entity: EntityDef | None = None, new_entity: EntityDef | None = None
) -> bool:
    """Whether rows of one version are rows of the other: ttl, rules, windows, words and the view's label may differ.

    The label of a feature may not: it says where the column lies. Nor may keys, where the entity is another version.
    """
    entities = [None if entity is None else (entity.keys, entity.subject) for entity in (old_entity, new_entity)]
    return entities[0] == entities[1] and _fingerprint_rows(old) == _fingerprint_rows(new)


def check_definition(
    definition: Definition, *, entities: Sequence[EntityDef] = (), views: Sequence[ViewDef] = ()
) -> None:
    """Invalid, naming the object, unless it can stand on these; of a service, `views` has one for each of its picks."""
    with prefix_errors(f"{_get_definition_kind(definition)} {definition.name[:200]}"):
        if isinstance(definition, EntityDef):
            check_entity(definition)
        elif isinstance(definition, ViewDef):
            check_view(definition, next((item for item in entities if item.name == definition.entity), None))
        else:
            check_service(definition)
            if views:
                entities_by_name = {item.name: item for item in entities}
                check_answer(definition, [(item, entities_by_name.get(item.entity)) for item in views])


def plan_changes(definitions: DefinitionSet, state: DefinitionState) -> ChangePlan:
    """What applying definitions will do: what changes, what that breaks, and who uses the version before."""
    planner = _ChangePlanner(definitions, state)
    changes = [
        *(planner.entity(definition) for definition in definitions.entities),
        *(planner.view(definition) for definition in definitions.views),
        *(planner.service(definition) for definition in definitions.services),
        *planner.unlisted(),
    ]
    current_state = [
        (name, str(definition.ref), fingerprint_definition(definition.definition))
        for name, definition in sorted(state.newest.items())
    ]
    digest = hashlib.sha256(to_stable_json([to_plain(definitions), current_state])).hexdigest()
    return ChangePlan(tuple(changes), digest=f"sha256:{digest}")


class _ChangePlanner:
    """What will stand, as far as the plan has come: entities first, then views, then services."""

    def __init__(self, definitions: DefinitionSet, state: DefinitionState) -> None:
        self._state = state
        self._definitions = definitions
        self._planned: dict[str, tuple[Ref, Definition]] = {
            name: (stored.ref, stored.definition) for name, stored in state.newest.items()
        }
        all_definitions: list[Definition] = [*definitions.entities, *definitions.views, *definitions.services]
        names = Counter(map(_make_definition_ref, all_definitions))
        duplicate = next((name for name, count in names.items() if count > 1), None)
        if duplicate is not None:
            raise Invalid(f"{duplicate} is defined twice", "keep one of them")
        self._names = frozenset(names)

    def entity(self, definition: EntityDef) -> PlannedChange:
        check_definition(definition)
        return self._plan_change(definition, ())

    def view(self, definition: ViewDef) -> PlannedChange:
        entity = self._find_definition(Ref("entity", *_split_name(definition.entity)), definition)
        check_definition(definition, entities=[entity[1]])
        change = self._plan_change(definition, (str(entity[0]),))
        stored = self._state.newest.get(_make_definition_ref(definition))
        return (
            change
            if stored is None
            else replace(change, breaks=tuple(self._iterate_breaks(stored.definition, definition)))
        )

    def service(self, definition: ServiceDef) -> PlannedChange:
        picked_views = [self._find_picked_view(pick.view, definition) for pick in definition.picks]
        owners = [
            planned_definition
            for ref, planned_definition in self._planned.values()
            if isinstance(planned_definition, EntityDef)
        ]
        check_definition(definition, entities=owners, views=[view for _, view in picked_views])
        return self._plan_change(definition, tuple(str(ref) for ref, _ in picked_views))

    def unlisted(self) -> Iterator[PlannedChange]:
        """What stands and the definitions do not name, but which they touch: it stays as it is."""
        for name, (ref, _) in sorted(self._planned.items()):
            if name not in self._names:
                yield PlannedChange(ref, "unlisted", users=self._list_users(str(ref)))
        for service in self._state.services:
            planned_views = {pin: self._planned.get(str(Ref.parse(pin).bare)) for pin in service.pins}
            outdated_pins = [
                pin for pin, planned in planned_views.items() if planned is not None and str(planned[0]) != pin
            ]
            if str(service.ref.bare) not in self._planned and outdated_pins:
                yield PlannedChange(
                    service.ref,
                    "unlisted",
                    (f"stays at {', '.join(outdated_pins)}",),
                    users=self._list_users(str(service.ref)),
                )

    def _plan_change(self, definition: Any, pins: tuple[str, ...]) -> PlannedChange:
        stored = self._state.newest.get(_make_definition_ref(definition))
        if stored is None:
            return self._record_change(
                PlannedChange(Ref.parse(_make_definition_ref(definition)).at("v1"), "new"), definition
            )
        differences = (*_describe_differences(stored.definition, definition), *_describe_moved_pins(stored.pins, pins))
        users = self._list_users(str(stored.ref))
        if not differs_in_words_only(stored.definition, definition) or (stored.pins and set(pins) != set(stored.pins)):
            ref = stored.ref.at(f"v{_get_version_number(stored.ref) + 1}")
            return self._record_change(PlannedChange(ref, "change", differences, users=users), definition)
        act = "same" if to_plain(stored.definition) == to_plain(definition) else "describe"
        return self._record_change(PlannedChange(stored.ref, act, differences, users=users), definition)

    def _record_change(self, change: PlannedChange, definition: Definition) -> PlannedChange:
        self._planned[_make_definition_ref(definition)] = (change.ref, definition)
        return change

    def _find_definition(self, ref: Ref, user: Definition) -> tuple[Ref, Any]:
        planned = self._planned.get(str(ref))
        if planned is None:
            raise Invalid(
                f"{_get_definition_kind(user)} {user.name}: there is no {ref}", "define it in the same file, or before"
            )
        return planned

    def _find_picked_view(self, name: str, user: ServiceDef) -> tuple[Ref, ViewDef]:
        ref = Ref.parse(f"view:{name}")
        if not ref.version:
            return self._find_definition(ref, user)
        newest = self._planned.get(str(ref.bare))
        if newest is not None and newest[0] == ref and isinstance(newest[1], ViewDef):
            return ref, newest[1]
        if str(ref) not in self._state.older:
            raise Invalid(f"service {user.name}: there is no {ref}", "falaj features show names the versions")
        return ref, self._state.older[str(ref)]

    def _list_users(self, pinned: str) -> tuple[str, ...]:
        services = {str(service.ref) for service in self._state.services if pinned in service.pins} | {pinned}
        models = (name for name, pins in self._state.models.items() if services & set(pins))
        return (*sorted(services - {pinned}), *sorted(models))

    def _iterate_breaks(self, old: Any, new: ViewDef) -> Iterator[str]:
        """Whoever takes a column that goes away or changes its type, and is not changed along with it."""
        old_columns, new_columns = list_served_columns(old), list_served_columns(new)
        lost_columns = {name: "goes away" for name in old_columns if name not in new_columns}
        lost_columns |= {
            name: f"becomes {new_columns[name]}"
            for name in old_columns
            if new_columns.get(name, old_columns[name]) != old_columns[name]
        }
        pins_by_model = self._state.models
        for service in sorted(self._state.services, key=lambda service_entry: service_entry.ref):
            reasons = [
                f"{name}, which {lost_columns[name]}"
                for name in _list_lost_columns(service.definition, new.name, lost_columns)
            ]
            models = sorted(name for name, pins in pins_by_model.items() if str(service.ref) in pins)
            versions = [
                _get_version_number(other_service.ref)
                for other_service in self._state.services
                if other_service.ref.bare == service.ref.bare
            ]
            is_current = _get_version_number(service.ref) == max(
                versions
            )  # an older one stands only for the models that pin it
            for reason in reasons:
                if is_current and str(service.ref.bare) not in self._names:
                    yield f"{service.ref} uses {reason}"
                yield from (f"{model} was trained with {service.ref}, which uses {reason}" for model in models)


def _list_lost_columns(service: Definition, view: str, lost_columns: Iterable[str]) -> list[str]:
    """Which of the lost columns a service takes from wherever the view goes."""
    picks = (
        [service_pick for service_pick in service.picks if service_pick.view == view]
        if isinstance(service, ServiceDef)
        else []
    )
    return sorted({name for pick in picks for name in lost_columns if name in pick.columns or not pick.columns})


def _make_definition_ref(definition: Definition) -> str:
    return f"{_get_definition_kind(definition)}:{definition.name}"


def _split_name(name: str) -> tuple[str, str]:
    project, _, local_name = name.partition("/")
    return project, local_name


def _get_version_number(ref: Ref) -> int:
    return int(ref.version[1:])


def _get_definition_kind(definition: Definition) -> str:
    return {EntityDef: "entity", ViewDef: "view"}.get(type(definition), "service")


def _to_fingerprint_body(definition: Definition) -> Any:
    body = {name: value for name, value in to_plain(definition).items() if name not in _DESCRIPTIVE_FIELDS}
    if isinstance(definition, ViewDef):
        body["features"] = [_feature_fingerprint(feature) for feature in definition.features]
        body["label"] = definition.label.digest
    return body


def _feature_fingerprint(feature: FeatureDef) -> list[object]:
    return [feature.name, feature.type, feature.express, feature.label.digest if feature.label else ""]


def _fingerprint_rows(view: ViewDef) -> bytes:
    source = replace(view.source, more={})
    columns = [_feature_fingerprint(feature) for feature in view.features]
    return to_stable_json([view.entity, to_plain(source), columns, view.function, view.sealed, view.zone])


def _describe_moved_pins(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    pin_by_name = {str(Ref.parse(pin).bare): pin for pin in old}
    for pin in dict.fromkeys(new):
        old_pin = pin_by_name.get(str(Ref.parse(pin).bare), pin)
        if old_pin != pin:
            yield f"{old_pin} -> @{Ref.parse(pin).version}"


def _describe_differences(old: Definition, new: Definition) -> Iterator[str]:
    """In words, what changed; never a value that rows hold."""
    names = [name for name in type(new).__dataclass_fields__ if getattr(old, name, None) != getattr(new, name)]
    for name in names:
        old_value, new_value = getattr(old, name, None), getattr(new, name)
        if name in ("features", "windows", "keys", "picks", "computed", "request") and isinstance(old_value, tuple):
            yield from _describe_list_changes(name, old_value, new_value)
        elif name == "ttl_us":
            yield f"ttl {_format_optional_span(old_value)} -> {_format_optional_span(new_value)}"
        elif name == "label" and isinstance(old_value, Label):
            yield f"label {old_value.words} -> {new_value.words}"
        elif name in ("online", "sealed", "zone", "entity", "subject", "owner"):
            yield f"{name} {old_value or 'none'} -> {new_value or 'none'}"
        else:
            yield f"{name} changed"


def _describe_list_changes(field_name: str, old: Sequence[Any], new: Sequence[Any]) -> Iterator[str]:
    item_name = {"features": "column", "windows": "column", "picks": "view", "keys": "key"}.get(field_name, field_name)
    old_items, new_items = ({_get_item_name(item): item for item in items} for items in (old, new))
    yield from (f"{item_name} {name} is gone" for name in old_items if name not in new_items)
    yield from (f"{item_name} {name} is new" for name in new_items if name not in old_items)
    for name in new_items:
        if name in old_items and old_items[name] != new_items[name]:
            types = [getattr(item[name], "type", "") for item in (old_items, new_items)]
            yield f"{item_name} {name} changed" + (f": {types[0]} -> {types[1]}" if types[0] != types[1] else "")
    if old_items == new_items and list(old_items) != list(new_items):
        yield f"another order of {field_name}"


def _get_item_name(item: Any) -> str:
    hidden = " (to compute from)" if getattr(item, "hidden", False) else ""
    return f"{getattr(item, 'name', '') or item.view}{hidden}"


def _format_optional_span(us: Any) -> str:
    return format_span(us) if us else "none"
