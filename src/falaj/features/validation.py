"""What must hold of a definition, whoever sends it: names, types, expressions, windows, rules."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from falaj.asof import window_aggregation
from falaj.asof.calendar_parts import is_known_zone
from falaj.asof.column_values import is_known_type
from falaj.asof.expression_operations import can_store
from falaj.asof.expressions import infer_type as type_of
from falaj.asof.records import AGGREGATIONS, KEY_TYPES, SCALAR_TYPES, Computed, FeatureField
from falaj.asof.rule_limits import check_limits
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.features.function_text import check_function_text, hash_function_text
from falaj.features.records import ColumnPick, EntityDef, FeatureDef, ServiceDef, SourceDef, ViewDef

RESERVED_COLUMNS = ("event", "created", "seq")
"""What rows are called by themselves."""


@contextmanager
def prefix_errors(subject: str) -> Iterator[None]:
    """Say of which object a complaint inside is."""
    try:
        yield
    except Invalid as error:
        raise Invalid(f"{subject}: {error.message}", error.hint) from None


def check_column_name(name: object) -> None:
    """Invalid unless a column may be called so."""
    is_valid_name = isinstance(name, str) and name.isidentifier() and "__" not in name and not name.startswith("_")
    if not is_valid_name or len(str(name)) > 100 or name in RESERVED_COLUMNS:
        hint = "letters, digits and single _, a letter first; event, created and seq are taken"
        raise Invalid(f"{str(name)[:100]!r} cannot be the name of a column", hint)


def check_object_name(kind: str, name: str) -> Ref:
    """The reference of what is called project/name."""
    project, slash, local_name = name.partition("/")
    if not slash or "@" in name:
        raise Invalid(f"{name[:100]!r} is not a name", f"project/name, for example fraud/{kind}")
    return Ref(kind, project, local_name)


def check_field(name: str, type_name: str, allowed: Sequence[str] = ()) -> FeatureField:
    """A column and its type."""
    check_column_name(name)
    if (type_name not in allowed) if allowed else not is_known_type(type_name):
        hint = f"one of {', '.join(allowed or SCALAR_TYPES)}{'' if allowed else ', or list[…] of one'}"
        raise Invalid(f"{name} has no type {type_name[:50]!r}", hint)
    return FeatureField(name, type_name)


def check_unique_names(names: Iterable[str]) -> None:
    """Invalid where a name is there twice."""
    seen_names: set[str] = set()
    for name in names:
        if name in seen_names:
            raise Invalid(f"{name} is there twice", "give one of them another name")
        seen_names.add(name)


def check_entity(entity: EntityDef) -> None:
    """Invalid where an entity cannot be."""
    check_object_name("entity", entity.name)
    for key in entity.keys:
        check_field(key.name, key.type, KEY_TYPES)
    names = [key.name for key in entity.keys]
    check_unique_names(names)
    if not names or (entity.subject and entity.subject not in names):
        raise Invalid("there is no such key", "keys={'customer_id': 'string'}, subject='customer_id'")


def check_source(source: SourceDef) -> None:
    """Invalid where rows cannot come from there, or where it holds a secret."""
    if source.kind not in ("dataset", "push", "kafka", "sql") or (source.kind != "push") != bool(source.address):
        hint = "dataset:project/name, push, kafka:topic, or sql='duckdb:file.db' with query='select …'"
        raise Invalid("this is no source", hint)
    if source.kind == "sql" and not source.address.startswith(("duckdb:", "adbc:")):
        raise Invalid(f"{source.address[:80]!r} is no database", "duckdb:FILE, or adbc:DRIVER")
    if source.kind == "dataset" and Ref.parse(source.address).kind != "dataset":
        raise Invalid(f"{source.address} is no dataset", "dataset:project/name")
    if any(("://" in text and "@" in text) or "password=" in text for text in (source.address, *source.more.values())):
        raise Invalid("a definition holds no password", "name the environment variable that has it")
    if not source.event or (source.kind == "sql") > bool(source.query):
        raise Invalid("it does not say which column is the event's moment, or has no query", "event='at', query='…'")
    if source.query and source.kind in ("push", "kafka"):
        raise Invalid("rows that are pushed are not queried", "leave the query out")
    if not is_known_zone(source.zone):
        raise Invalid(f"there is no time zone {source.zone[:80]!r}", "for example Asia/Dubai")


def check_feature(feature: FeatureDef, types: Mapping[str, str] | None = None) -> None:
    """Invalid where its expression cannot give its type; `types` are those of the columns it is made of, if known."""
    with prefix_errors(f"feature {feature.name}"):
        check_field(feature.name, feature.type)
        result_type = feature.type if feature.express is None else type_of(feature.express, types)
        if not can_store(result_type, feature.type):
            hint = f"say .cast({feature.type!r}), or call it {result_type}"
            raise Invalid(f"its expression gives {result_type}, not {feature.type}", hint)


def check_view(view: ViewDef, entity: EntityDef | None = None) -> None:
    """Invalid where a view cannot be: by itself, or of this entity."""
    check_object_name("view", view.name)
    check_object_name("entity", view.entity)
    check_source(view.source)
    for feature in view.features:
        check_feature(feature)
    if view.function:
        check_function_text(view.function)
        if any(feature.express is not None for feature in view.features):
            raise Invalid("a feature has an expression, and a function too", "compute it in one of them")
    _check_windows(view)
    keys = [key.name for key in entity.keys] if entity else []
    columns = [*keys, *(feature.name for feature in view.features)]
    check_unique_names([*columns, *(window.name for window in view.windows)])
    if not view.features and not view.windows:
        raise Invalid("it has no features", "features=[Feature('amount', 'float64')]")
    if view.ttl_us < 0:
        raise Invalid("its ttl is below zero", "ttl='90d', or none")
    if view.sealed and entity and not entity.subject:
        raise Invalid("only rows of a person are sealed, and its entity names none", "Entity(…, subject='customer_id')")
    for rule in view.rules:
        check_limits(rule, [*columns, *RESERVED_COLUMNS] if entity else None)


def _check_windows(view: ViewDef) -> None:
    types = {feature.name: feature.type for feature in view.features}
    for window in view.windows:
        with prefix_errors(f"window {window.name}"):
            check_column_name(window.name)
            if window.how not in AGGREGATIONS or (window.of and window.of not in types):
                hint = f"one of {', '.join(AGGREGATIONS)}, over one of {', '.join(types) or 'no features'}"
                raise Invalid(f"there is no {window.how[:20]} of {window.of[:100]}", hint)
            window_aggregation.check_window(window, types.get(window.of, ""))


def check_service(service: ServiceDef) -> None:
    """Invalid where a service cannot be, whatever its views are."""
    check_object_name("service", service.name)
    if not service.picks and not service.computed:
        raise Invalid("it has no features", "Service('fraud/scorer', [spend['amount'], totals])")
    for pick in service.picks:
        check_pick(pick)
    for field in service.request:
        check_field(field.name, field.type)
    check_unique_names(item.name for item in service.request)
    check_unique_names(item.name for item in service.computed)
    for computed in service.computed:
        with prefix_errors(f"on demand {computed.name}"):
            check_computed(computed)


def check_pick(pick: ColumnPick) -> None:
    """Invalid where it names no view, or no columns."""
    view_name, separator, version = pick.view.partition("@")
    if separator and not check_object_name("view", view_name).at(version).pinned:
        raise Invalid(f"{pick.view[:200]!r} does not stay at a version", "project/name@v3, or without @")
    with prefix_errors(f"view {check_object_name('view', view_name)}"):
        check_unique_names(pick.columns)
        for name in (*pick.names.values(), *pick.keys.values()):
            check_column_name(name)


def check_computed(computed: Computed, types: Mapping[str, str] | None = None) -> None:
    """Invalid where it cannot be made; `types` are those of its inputs, if known."""
    check_column_name(computed.name)
    for field in computed.outputs:
        check_field(field.name, field.type)
    check_unique_names([*computed.inputs, *(field.name for field in computed.outputs)])
    if not computed.outputs or not computed.inputs:
        raise Invalid("it has no inputs, or no features", "inputs=[spend['amount']], features={'ratio': 'float64'}")
    if computed.source:
        check_function_text(computed.source)
        if computed.express or computed.digest != hash_function_text(computed.source):
            raise Invalid("its text is not what its digest says, or it is said twice", "define it again")
        return
    input_types = (
        dict.fromkeys(computed.inputs, "") if types is None else {name: types.get(name, "") for name in computed.inputs}
    )
    for field in computed.outputs:
        if computed.express.get(field.name) is None:
            raise Invalid(f"{field.name} has no expression", "Feature(name, type, col('a') / col('b')), or a function")
        check_feature(FeatureDef(field.name, field.type, computed.express[field.name]), input_types)
