"""A Feast repository read as definitions of ours: entities, views, what is computed on demand, services.

Its Python files need Feast, which need not stand beside us: a child process under a Python that has it runs them and
says as JSON what they define. The JSON alone, kept as a file, does as well.

Ours differs where Feast contradicts itself: a value older than its ttl is EXPIRED online too, a row of the future is
not served, a late row never hides a newer one and a correction always wins. A row exactly as old as the ttl is out.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from falaj.asof.expressions import col
from falaj.asof.records import SCALAR_TYPES, Computed, FeatureField
from falaj.core.errors import Invalid, NotFound, UserCodeFailed
from falaj.features.function_text import capture_function_source, hash_function_text
from falaj.features.records import ColumnPick, DefinitionSet, EntityDef, FeatureDef, ServiceDef, SourceDef, ViewDef
from falaj.features.validation import check_computed, check_entity, check_service, check_view, prefix_errors
from falaj.store.codec import from_json

PYTHON_VARIABLE = "FALAJ_FEAST_PYTHON"
"""Names the Python that has Feast, where ours has not."""
_TIMEOUT_S = 300.0
_OUTPUT_MARK = "falaj-feast:"
_TYPES_BY_FEAST_NAME = {"INT32": "int32", "INT64": "int64", "FLOAT": "float32", "DOUBLE": "float64", "STRING": "string"}
_TYPES_BY_FEAST_NAME |= {"BYTES": "bytes", "BOOL": "bool", "UNIX_TIMESTAMP": "time"}
_TYPES_BY_FEAST_NAME |= {f"{name}_LIST": f"list[{own_type}]" for name, own_type in _TYPES_BY_FEAST_NAME.items()}
_DATABASES = {"PostgreSQLSource": "postgresql", "SnowflakeSource": "snowflake", "BigQuerySource": "bigquery"}


@dataclass(frozen=True, slots=True)
class FeastSource:
    """A data source of Feast's, by its class."""

    kind: str
    name: str
    path: str = ""
    event: str = ""
    created: str = ""
    mapping: Mapping[str, str] = field(default_factory=dict)
    """The source's column to the feature's name."""
    query: str = ""
    topic: str = ""
    servers: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Its columns as Feast sees them, where it could look."""


@dataclass(frozen=True, slots=True)
class FeastEntity:
    """An entity: one join key."""

    name: str
    key: str
    type: str
    about: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FeastView:
    """A feature view."""

    name: str
    entities: tuple[str, ...]
    keys: Mapping[str, str]
    features: tuple[tuple[str, str, str], ...]
    """Name, type, words."""
    ttl_s: float
    source: FeastSource
    online: bool = True
    owner: str = ""
    about: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    special: str = ""
    """What it has that we do not take over."""


@dataclass(frozen=True, slots=True)
class FeastProjection:
    """What a service or a computation takes from a view."""

    view: str
    columns: tuple[str, ...]
    alias: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FeastOnDemandView:
    """An on-demand feature view."""

    name: str
    mode: str
    singleton: bool
    features: tuple[tuple[str, str, str], ...]
    inputs: tuple[FeastProjection, ...]
    request: tuple[tuple[str, str, str], ...]
    text: str = ""


@dataclass(frozen=True, slots=True)
class FeastService:
    """A feature service."""

    name: str
    picks: tuple[FeastProjection, ...]
    owner: str = ""
    about: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FeastRepository:
    """All that a repository defines, as the child says it."""

    project: str
    entities: tuple[FeastEntity, ...] = ()
    views: tuple[FeastView, ...] = ()
    demands: tuple[FeastOnDemandView, ...] = ()
    services: tuple[FeastService, ...] = ()


def import_feast_repository(
    path: str | Path, project: str = "", python: str = ""
) -> tuple[DefinitionSet, tuple[str, ...]]:
    """Definitions that say what a Feast repository says, and notes on what must be done or could not be taken over.

    `path` is the folder with feature_store.yaml, or a JSON file that `describe` wrote; `python` one that has Feast.
    """
    repository_path = Path(path).expanduser()
    text = repository_path.read_text() if repository_path.is_file() else describe_repository(repository_path, python)
    return translate_repository(from_json(FeastRepository, text), project)


def describe_repository(folder: Path, python: str = "") -> str:
    """The JSON of a repository, said by a child process that has Feast and runs the repository's files."""
    if not (folder / "feature_store.yaml").is_file():
        raise NotFound(f"{folder.name} is no Feast repository", "name the folder that has feature_store.yaml")
    python_path = python or os.environ.get(PYTHON_VARIABLE, "")
    if not python_path and importlib.util.find_spec("feast") is None:
        raise Invalid(
            "Feast is not installed here", f"name a Python that has it: {PYTHON_VARIABLE}=feast-env/bin/python"
        )
    script_path = Path(__file__).with_name("feast_export.py")
    command = [
        python_path or sys.executable,
        "-W",
        "ignore",
        "-I",
        str(script_path),
        str(folder.resolve()),
        _OUTPUT_MARK,
    ]
    environment = {**os.environ, "FEAST_USAGE": "False"}
    try:
        process = subprocess.run(  # noqa: S603  # nosec B603 - the caller's own Python, on the caller's repository
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Invalid(
            "that Python cannot be run, or does not end", f"{PYTHON_VARIABLE}=feast-env/bin/python"
        ) from error
    output_lines = [
        line.removeprefix(_OUTPUT_MARK) for line in process.stdout.splitlines() if line.startswith(_OUTPUT_MARK)
    ]
    if process.returncode or not output_lines:
        reason = (process.stderr.strip().splitlines() or ["it said nothing"])[-1][:300]
        raise UserCodeFailed(f"the Feast repository could not be read: {reason}", "does `feast plan` work there?")
    return output_lines[-1]


def translate_repository(repository: FeastRepository, project: str = "") -> tuple[DefinitionSet, tuple[str, ...]]:
    """A repository as definitions and notes. Pure."""
    translation = _FeastTranslator(project or repository.project.lower(), repository)
    views = tuple(translation.views())
    services = tuple(translation.services())
    for view in views:
        with prefix_errors(f"view {view.name}"):
            check_view(view, translation.entities[view.entity])
    for service in services:
        with prefix_errors(f"service {service.name}"):
            check_service(service)
    return DefinitionSet(tuple(translation.entities.values()), views, services), tuple(translation.notes)


class _FeastTranslator:
    def __init__(self, project: str, repository: FeastRepository) -> None:
        self._project, self._repository = project, repository
        self.entities: dict[str, EntityDef] = {}
        self.notes: list[str] = []
        self._views: dict[str, ViewDef] = {}

    def views(self) -> Iterator[ViewDef]:
        for feast_view in self._repository.views:
            entity = self._translate_entity(feast_view)
            source = self._translate_source(feast_view, entity) if entity else None
            if entity is None or source is None:
                continue
            source_column_by_name = {
                feature_name: source_name for source_name, feature_name in feast_view.source.mapping.items()
            }
            features = [
                FeatureDef(*self._translate_field(feast_view.name, *feature_parts))
                for feature_parts in self._iterate_features(feast_view)
            ]
            features = [
                replace(feature, express=col(source_column_by_name[feature.name]).data)
                if feature.name in source_column_by_name
                else feature
                for feature in features
                if feature.type
            ]
            if feast_view.special:
                self.notes.append(f"view {feast_view.name}: {feast_view.special} is not taken over")
            view = ViewDef(
                name=f"{self._project}/{feast_view.name}",
                entity=entity.name,
                source=source,
                features=tuple(features),
                ttl_us=round(feast_view.ttl_s * 1e6),
                online=feast_view.online,
                owner=feast_view.owner,
                about=feast_view.about,
                tags=feast_view.tags,
            )
            self._views[feast_view.name] = view
            yield view

    def services(self) -> Iterator[ServiceDef]:
        demands = {feast_service.name: feast_service for feast_service in self._repository.demands}
        computed_by_name = {name: self._translate_computed(feast_service) for name, feast_service in demands.items()}
        for feast_service in self._repository.services:
            missing = [
                pick.view
                for pick in feast_service.picks
                if pick.view not in self._views and not computed_by_name.get(pick.view)
            ]
            self.notes += [
                f"service {feast_service.name}: {name} is left out, because it was not taken over" for name in missing
            ]
            kept_picks = [pick for pick in feast_service.picks if pick.view not in missing]
            on_demand_names = [pick.view for pick in kept_picks if pick.view in computed_by_name]
            hidden_picks = [self._translate_pick(pick, ()) for name in on_demand_names for pick in demands[name].inputs]
            picks = [self._translate_pick(pick, kept_picks) for pick in kept_picks if pick.view not in computed_by_name]
            if not picks and not on_demand_names:
                continue
            yield ServiceDef(
                name=f"{self._project}/{feast_service.name}",
                picks=(*picks, *(replace(pick, hidden=True) for pick in hidden_picks)),
                computed=tuple(
                    computed for name in on_demand_names if (computed := computed_by_name[name]) is not None
                ),
                request=tuple(
                    dict.fromkeys(
                        request_field
                        for name in on_demand_names
                        for request_field in self._translate_fields(name, demands[name].request)
                    )
                ),
                owner=feast_service.owner,
                about=feast_service.about,
                tags=feast_service.tags,
            )

    def _translate_pick(self, pick: FeastProjection, other_picks: Iterable[FeastProjection]) -> ColumnPick:
        repeated_picks = [other for other in other_picks if other.view == pick.view and other != pick]
        columns = self._list_columns(pick)
        names = {name: f"{pick.alias}_{name}" for name in columns} if pick.alias and repeated_picks else {}
        return ColumnPick(f"{self._project}/{pick.view}", columns, names, pick.keys)

    def _list_columns(self, pick: FeastProjection) -> tuple[str, ...]:
        """Those of its columns that were taken over."""
        view_columns = [feature.name for feature in self._views[pick.view].features]
        return tuple(name for name in pick.columns or view_columns if name in view_columns)

    def _translate_entity(self, view: FeastView) -> EntityDef | None:
        """The entity of a view: of several of Feast's, one with the keys of all."""
        feast_entities = [
            feast_entity
            for name in view.entities
            for feast_entity in self._repository.entities
            if feast_entity.name == name
        ]
        if not feast_entities or len(feast_entities) != len(view.entities):
            self.notes.append(f"view {view.name} is left out: it has no entity; give it one, with a constant key")
            return None
        name = f"{self._project}/{'_'.join(view.entities)}"
        keys = tuple(
            FeatureField(feast_entity.key, self._choose_key_type(feast_entity, view)) for feast_entity in feast_entities
        )
        description, tags = (feast_entities[0].about, feast_entities[0].tags) if len(feast_entities) == 1 else ("", {})
        entity = self.entities.setdefault(name, EntityDef(name, keys, about=description, tags=tags))
        with prefix_errors(f"entity {name}"):
            check_entity(entity)
        return entity

    def _choose_key_type(self, entity: FeastEntity, view: FeastView) -> str:
        column_type = view.source.columns.get(_find_source_column(view.source, entity.key), "")
        key_type = (
            _TYPES_BY_FEAST_NAME.get(view.keys.get(entity.key, ""), "")
            or _TYPES_BY_FEAST_NAME.get(entity.type, "")
            or _from_arrow_name(column_type)
        )
        if not key_type:
            self.notes.append(f"entity {entity.name}: Feast does not say the type of {entity.key}; taken as string")
        return {"int32": "int64", "": "string"}.get(key_type, key_type)

    def _translate_source(self, view: FeastView, entity: EntityDef) -> SourceDef | None:
        feast_source = view.source
        source = SourceDef("dataset", "", "", feast_source.event, feast_source.created, "UTC")
        if feast_source.kind == "FileSource":
            address = f"dataset:{self._project}/{feast_source.name or view.name}".replace(" ", "-")
            self.notes.append(f"view {view.name}: publish {feast_source.path} as {address}")
            key_columns = [(_find_source_column(feast_source, key.name), key.name) for key in entity.keys]
            renamed_columns = [
                (source_name, key_name) for source_name, key_name in key_columns if source_name != key_name
            ]
            select_list = ", ".join(
                f"{_quote_identifier(source_name)} as {_quote_identifier(key_name)}"
                for source_name, key_name in renamed_columns
            )
            query = f"select *, {select_list} from rows" if renamed_columns else ""  # noqa: S608  # nosec B608 - quoted, run beside the caller
            return replace(source, address=address, query=query, more={"path": feast_source.path})
        if feast_source.kind == "PushSource":
            history_note = (
                f"; what it has so far lies in {feast_source.path}: push it once" if feast_source.path else ""
            )
            self.notes.append(f"view {view.name} is pushed to: falaj features push{history_note}")
            return replace(source, kind="push", created="")
        if feast_source.kind == "KafkaSource":
            self.notes.append(
                f"view {view.name}: say where Kafka is before ingesting: export FALAJ_KAFKA={feast_source.servers}"
            )
            return replace(source, kind="kafka", address=feast_source.topic, created="")
        if feast_source.kind in _DATABASES and feast_source.query:
            self.notes.append(f"view {view.name}: put the database's address in $FALAJ_ADBC_URI before ingesting")
            return replace(
                source, kind="sql", address=f"adbc:{_DATABASES[feast_source.kind]}", query=feast_source.query
            )
        self.notes.append(
            f"view {view.name} is left out: a {feast_source.kind} has no counterpart; write its source by hand"
        )
        return None

    def _iterate_features(self, view: FeastView) -> Iterator[tuple[str, str, str]]:
        if view.features:
            yield from view.features
            return
        key_columns = {view.source.event, view.source.created, *(entity.key for entity in self._repository.entities)}
        for source_name, kind in view.source.columns.items():
            name = view.source.mapping.get(source_name, source_name)
            if name not in key_columns and source_name not in key_columns:
                yield name, _from_arrow_name(kind), ""

    def _translate_fields(self, owner: str, field_list: Iterable[tuple[str, str, str]]) -> tuple[FeatureField, ...]:
        translated = [self._translate_field(owner, *field_parts) for field_parts in field_list]
        return tuple(FeatureField(name, kind) for name, kind, _, _ in translated if kind)

    def _translate_field(self, owner: str, name: str, kind: str, description: str) -> tuple[str, str, None, str]:
        own_type = _TYPES_BY_FEAST_NAME.get(kind, kind if kind in SCALAR_TYPES else "")
        if not own_type:
            self.notes.append(f"{owner}: {name} is left out: {kind or 'its type'} has no counterpart")
        return name, own_type, None, description

    def _translate_computed(self, demand: FeastOnDemandView) -> Computed | None:
        """The function itself, where it is one of columns; others are noted, with what to write."""
        hint = f"write it anew: @on_demand(...) def {demand.name}(columns)"
        if demand.mode != "python" or demand.singleton or not all(pick.view in self._views for pick in demand.inputs):
            self.notes.append(f"on demand {demand.name} is left out: not a Python function of columns of views; {hint}")
            return None
        outputs = self._translate_fields(demand.name, demand.features)
        inputs = [name for pick in demand.inputs for name in self._list_columns(pick)] + [
            name for name, _, _ in demand.request
        ]
        try:
            _, text = capture_function_source(demand.text)
            computed = Computed(demand.name, tuple(inputs), outputs, {}, text, hash_function_text(text))
            check_computed(computed)
        except Invalid as error:
            self.notes.append(f"on demand {demand.name} is left out: {error.message}; {hint}")
            return None
        return computed


def _find_source_column(source: FeastSource, name: str) -> str:
    return next((source_name for source_name, feature_name in source.mapping.items() if feature_name == name), name)


def _quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _from_arrow_name(kind: str) -> str:
    """Ours for a type as Arrow spells it."""
    if kind.startswith(("timestamp", "date")):
        return "time"
    type_by_name = {
        "double": "float64",
        "float": "float32",
        "large_string": "string",
        "binary": "bytes",
        "int16": "int32",
    }
    own_type = type_by_name.get(kind, kind)
    return own_type if own_type in SCALAR_TYPES else ""
