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

from falaj.asof.express import col
from falaj.asof.records import SCALARS, Computed, Field
from falaj.core.errors import Invalid, NotFound, UserCodeFailed
from falaj.features.kept import digest_of, keep_text
from falaj.features.records import Definitions, EntityDef, FeatureDef, Pick, ServiceDef, SourceDef, ViewDef
from falaj.features.said import about, check_computed, check_entity, check_service, check_view
from falaj.store.codec import from_json

PYTHON = "FALAJ_FEAST_PYTHON"
"""Names the Python that has Feast, where ours has not."""
_TIMEOUT_S = 300.0
_MARK = "falaj-feast:"
_TYPES = {"INT32": "int32", "INT64": "int64", "FLOAT": "float32", "DOUBLE": "float64", "STRING": "string"}
_TYPES |= {"BYTES": "bytes", "BOOL": "bool", "UNIX_TIMESTAMP": "time"}
_TYPES |= {f"{name}_LIST": f"list[{ours}]" for name, ours in _TYPES.items()}
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
class FeastPick:
    """What a service or a computation takes from a view."""

    view: str
    columns: tuple[str, ...]
    alias: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FeastDemand:
    """An on-demand feature view."""

    name: str
    mode: str
    singleton: bool
    features: tuple[tuple[str, str, str], ...]
    inputs: tuple[FeastPick, ...]
    request: tuple[tuple[str, str, str], ...]
    text: str = ""


@dataclass(frozen=True, slots=True)
class FeastService:
    """A feature service."""

    name: str
    picks: tuple[FeastPick, ...]
    owner: str = ""
    about: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FeastRepository:
    """All that a repository defines, as the child says it."""

    project: str
    entities: tuple[FeastEntity, ...] = ()
    views: tuple[FeastView, ...] = ()
    demands: tuple[FeastDemand, ...] = ()
    services: tuple[FeastService, ...] = ()


def import_feast(path: str | Path, project: str = "", python: str = "") -> tuple[Definitions, tuple[str, ...]]:
    """Definitions that say what a Feast repository says, and notes on what must be done or could not be taken over.

    `path` is the folder with feature_store.yaml, or a JSON file that `describe` wrote; `python` one that has Feast.
    """
    where = Path(path).expanduser()
    text = where.read_text() if where.is_file() else describe(where, python)
    return translate(from_json(FeastRepository, text), project)


def describe(folder: Path, python: str = "") -> str:
    """The JSON of a repository, said by a child process that has Feast and runs the repository's files."""
    if not (folder / "feature_store.yaml").is_file():
        raise NotFound(f"{folder.name} is no Feast repository", "name the folder that has feature_store.yaml")
    chosen = python or os.environ.get(PYTHON, "")
    if not chosen and importlib.util.find_spec("feast") is None:
        raise Invalid("Feast is not installed here", f"name a Python that has it: {PYTHON}=feast-env/bin/python")
    told = Path(__file__).with_name("feast_told.py")
    command = [chosen or sys.executable, "-W", "ignore", "-I", str(told), str(folder.resolve()), _MARK]
    environment = {**os.environ, "FEAST_USAGE": "False"}
    try:
        done = subprocess.run(  # noqa: S603  # nosec B603 - the caller's own Python, on the caller's repository
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Invalid("that Python cannot be run, or does not end", f"{PYTHON}=feast-env/bin/python") from error
    said = [line.removeprefix(_MARK) for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not said:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:300]
        raise UserCodeFailed(f"the Feast repository could not be read: {reason}", "does `feast plan` work there?")
    return said[-1]


def translate(found: FeastRepository, project: str = "") -> tuple[Definitions, tuple[str, ...]]:
    """A repository as definitions and notes. Pure."""
    made = _Translation(project or found.project.lower(), found)
    views = tuple(made.views())
    services = tuple(made.services())
    for one in views:
        with about(f"view {one.name}"):
            check_view(one, made.entities[one.entity])
    for service in services:
        with about(f"service {service.name}"):
            check_service(service)
    return Definitions(tuple(made.entities.values()), views, services), tuple(made.notes)


class _Translation:
    def __init__(self, project: str, found: FeastRepository) -> None:
        self._project, self._found = project, found
        self.entities: dict[str, EntityDef] = {}
        self.notes: list[str] = []
        self._views: dict[str, ViewDef] = {}

    def views(self) -> Iterator[ViewDef]:
        for one in self._found.views:
            entity = self._entity(one)
            source = self._source(one, entity) if entity else None
            if entity is None or source is None:
                continue
            back = {ours: theirs for theirs, ours in one.source.mapping.items()}
            features = [FeatureDef(*self._field(one.name, *each)) for each in self._features(one)]
            features = [replace(f, express=col(back[f.name]).data) if f.name in back else f for f in features if f.type]
            if one.special:
                self.notes.append(f"view {one.name}: {one.special} is not taken over")
            made = ViewDef(
                name=f"{self._project}/{one.name}",
                entity=entity.name,
                source=source,
                features=tuple(features),
                ttl_us=round(one.ttl_s * 1e6),
                online=one.online,
                owner=one.owner,
                about=one.about,
                tags=one.tags,
            )
            self._views[one.name] = made
            yield made

    def services(self) -> Iterator[ServiceDef]:
        demands = {one.name: one for one in self._found.demands}
        made = {name: self._computed(one) for name, one in demands.items()}
        for one in self._found.services:
            lost = [pick.view for pick in one.picks if pick.view not in self._views and not made.get(pick.view)]
            self.notes += [f"service {one.name}: {name} is left out, because it was not taken over" for name in lost]
            kept = [pick for pick in one.picks if pick.view not in lost]
            asked = [pick.view for pick in kept if pick.view in made]
            hidden = [self._pick(pick, ()) for name in asked for pick in demands[name].inputs]
            picks = [self._pick(pick, kept) for pick in kept if pick.view not in made]
            if not picks and not asked:
                continue
            yield ServiceDef(
                name=f"{self._project}/{one.name}",
                picks=(*picks, *(replace(pick, hidden=True) for pick in hidden)),
                computed=tuple(computed for name in asked if (computed := made[name]) is not None),
                request=tuple(dict.fromkeys(f for name in asked for f in self._fields(name, demands[name].request))),
                owner=one.owner,
                about=one.about,
                tags=one.tags,
            )

    def _pick(self, pick: FeastPick, beside: Iterable[FeastPick]) -> Pick:
        again = [other for other in beside if other.view == pick.view and other != pick]
        columns = self._columns(pick)
        names = {name: f"{pick.alias}_{name}" for name in columns} if pick.alias and again else {}
        return Pick(f"{self._project}/{pick.view}", columns, names, pick.keys)

    def _columns(self, pick: FeastPick) -> tuple[str, ...]:
        """Those of its columns that were taken over."""
        known = [one.name for one in self._views[pick.view].features]
        return tuple(name for name in pick.columns or known if name in known)

    def _entity(self, view: FeastView) -> EntityDef | None:
        """The entity of a view: of several of Feast's, one with the keys of all."""
        parts = [one for name in view.entities for one in self._found.entities if one.name == name]
        if not parts or len(parts) != len(view.entities):
            self.notes.append(f"view {view.name} is left out: it has no entity; give it one, with a constant key")
            return None
        name = f"{self._project}/{'_'.join(view.entities)}"
        keys = tuple(Field(one.key, self._key_type(one, view)) for one in parts)
        words, tags = (parts[0].about, parts[0].tags) if len(parts) == 1 else ("", {})
        made = self.entities.setdefault(name, EntityDef(name, keys, about=words, tags=tags))
        with about(f"entity {name}"):
            check_entity(made)
        return made

    def _key_type(self, entity: FeastEntity, view: FeastView) -> str:
        shown = view.source.columns.get(_raw(view.source, entity.key), "")
        said = _TYPES.get(view.keys.get(entity.key, ""), "") or _TYPES.get(entity.type, "") or _of_column(shown)
        if not said:
            self.notes.append(f"entity {entity.name}: Feast does not say the type of {entity.key}; taken as string")
        return {"int32": "int64", "": "string"}.get(said, said)

    def _source(self, view: FeastView, entity: EntityDef) -> SourceDef | None:
        one = view.source
        made = SourceDef("dataset", "", "", one.event, one.created, "UTC")
        if one.kind == "FileSource":
            address = f"dataset:{self._project}/{one.name or view.name}".replace(" ", "-")
            self.notes.append(f"view {view.name}: publish {one.path} as {address}")
            renamed = [(_raw(one, key.name), key.name) for key in entity.keys]
            moved = [(theirs, ours) for theirs, ours in renamed if theirs != ours]
            also = ", ".join(f"{_quoted(theirs)} as {_quoted(ours)}" for theirs, ours in moved)
            query = f"select *, {also} from rows" if moved else ""  # noqa: S608  # nosec B608 - quoted, run beside the caller
            return replace(made, address=address, query=query, more={"path": one.path})
        if one.kind == "PushSource":
            history = f"; what it has so far lies in {one.path}: push it once" if one.path else ""
            self.notes.append(f"view {view.name} is pushed to: falaj features push{history}")
            return replace(made, kind="push", created="")
        if one.kind == "KafkaSource":
            self.notes.append(
                f"view {view.name}: say where Kafka is before ingesting: export FALAJ_KAFKA={one.servers}"
            )
            return replace(made, kind="kafka", address=one.topic, created="")
        if one.kind in _DATABASES and one.query:
            self.notes.append(f"view {view.name}: put the database's address in $FALAJ_ADBC_URI before ingesting")
            return replace(made, kind="sql", address=f"adbc:{_DATABASES[one.kind]}", query=one.query)
        self.notes.append(f"view {view.name} is left out: a {one.kind} has no counterpart; write its source by hand")
        return None

    def _features(self, view: FeastView) -> Iterator[tuple[str, str, str]]:
        if view.features:
            yield from view.features
            return
        known = {view.source.event, view.source.created, *(one.key for one in self._found.entities)}
        for theirs, kind in view.source.columns.items():
            name = view.source.mapping.get(theirs, theirs)
            if name not in known and theirs not in known:
                yield name, _of_column(kind), ""

    def _fields(self, owner: str, listed: Iterable[tuple[str, str, str]]) -> tuple[Field, ...]:
        found = [self._field(owner, *one) for one in listed]
        return tuple(Field(name, kind) for name, kind, _, _ in found if kind)

    def _field(self, owner: str, name: str, kind: str, words: str) -> tuple[str, str, None, str]:
        ours = _TYPES.get(kind, kind if kind in SCALARS else "")
        if not ours:
            self.notes.append(f"{owner}: {name} is left out: {kind or 'its type'} has no counterpart")
        return name, ours, None, words

    def _computed(self, one: FeastDemand) -> Computed | None:
        """The function itself, where it is one of columns; others are noted, with what to write."""
        hint = f"write it anew: @on_demand(...) def {one.name}(columns)"
        if one.mode != "python" or one.singleton or not all(pick.view in self._views for pick in one.inputs):
            self.notes.append(f"on demand {one.name} is left out: not a Python function of columns of views; {hint}")
            return None
        outputs = self._fields(one.name, one.features)
        inputs = [name for pick in one.inputs for name in self._columns(pick)] + [name for name, _, _ in one.request]
        try:
            _, text = keep_text(one.text)
            made = Computed(one.name, tuple(inputs), outputs, {}, text, digest_of(text))
            check_computed(made)
        except Invalid as error:
            self.notes.append(f"on demand {one.name} is left out: {error.message}; {hint}")
            return None
        return made


def _raw(source: FeastSource, name: str) -> str:
    return next((theirs for theirs, ours in source.mapping.items() if ours == name), name)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _of_column(kind: str) -> str:
    """Ours for a type as Arrow spells it."""
    if kind.startswith(("timestamp", "date")):
        return "time"
    plain = {"double": "float64", "float": "float32", "large_string": "string", "binary": "bytes", "int16": "int32"}
    found = plain.get(kind, kind)
    return found if found in SCALARS else ""
