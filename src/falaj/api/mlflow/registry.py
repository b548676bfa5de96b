"""The model registry as MLflow's clients know it, over the catalog: names, versions, aliases, gated stages."""

import re
from typing import Any

import msgspec

from falaj.api.mlflow.artifacts import REGISTRY, SCHEME, place_of, plain_path
from falaj.api.mlflow.coding import Pair, Question, Visit, endpoint, mapping, millis, pairs
from falaj.api.mlflow.filters import MODELS, VERSIONS, Page, Sight, chosen, page_of
from falaj.api.mlflow.ids import output_ref, run_ref
from falaj.api.mlflow.names import check_model_name, full_name, is_digested, name_of, ref_of, shown_name
from falaj.catalog.life_records import Named
from falaj.catalog.records import Version
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref

STAGES = {"experiment": "None", "staging": "Staging", "production": "Production", "retired": "Archived"}
NAME, GONE, SOURCE, RUN, MODEL = "falaj.name", "falaj.gone", "falaj.source", "falaj.run", "falaj.model"
"""Tags of ours that keep what MLflow says of a model or version and we have no field for; they are not shown as tags."""
OURS = (NAME, GONE, SOURCE, RUN, MODEL)
_RUNS = re.compile(r"runs:/([0-9a-f]{32})(?:/(.+))?")
_LOGGED = re.compile(r"models:/(m-[0-9a-f]{32})/?")


class One(Question):
    """What names a model or one of its versions, and may say something of it."""

    name: str
    version: str = ""
    new_name: str = ""
    description: str = ""
    key: str = ""
    value: str = ""
    alias: str = ""
    stage: str = ""
    stages: list[str] = msgspec.field(default_factory=list)


class Create(Question):
    """registered-models/create."""

    name: str
    description: str = ""
    tags: list[Pair] = msgspec.field(default_factory=list)


class CreateVersion(Create, kw_only=True):
    """model-versions/create."""

    source: str
    run_id: str = ""
    model_id: str = ""


class Search(Question):
    """registered-models/search and model-versions/search."""

    filter: str = ""
    max_results: int = 100
    order_by: list[str] = msgspec.field(default_factory=list)
    page_token: str = ""


def model_ref(visit: Visit, name: str) -> Ref:
    """The reference of a model's name."""
    check_model_name(name)
    return ref_of("model", full_name(name, visit.workspace))


def version_ref(visit: Visit, asked: One) -> Ref:
    """The reference of a version: MLflow counts 1, 2, 3."""
    if not re.fullmatch(r"[1-9][0-9]{0,17}", asked.version):
        raise Invalid(f"{asked.version[:40]!r} is no version", "a whole number, from 1")
    return model_ref(visit, asked.name).at(f"v{asked.version}")


@endpoint("catalog.describe", "POST 2.0 registered-models/create")
def create(visit: Visit, asked: Create) -> Any:
    """A name without versions yet."""
    ref = model_ref(visit, asked.name)
    known: Named | None = visit.look("catalog", "about", name=ref)
    if known is not None and GONE not in known.tags:
        raise Conflict(f"there is a model {asked.name[:80]!r}", "add a version to it")
    tags = mapping(asked.tags) | ({NAME: full_name(asked.name, visit.workspace)} if is_digested(ref) else {})
    made = visit.call("catalog", "describe", name=ref, about=asked.description, tags=tags, drop=(GONE,))
    return {"registered_model": _model(visit, made)}


@endpoint("catalog.about", "GET 2.0 registered-models/get")
def get(visit: Visit, asked: One) -> Any:
    """One of them."""
    return {"registered_model": _model(visit, _head(visit, asked.name))}


@endpoint("catalog.names", "GET 2.0 registered-models/search")
def search(visit: Visit, asked: Search) -> Any:
    """Those of a filter, in an order, a page at a time."""
    found, after = list[Named](), ""
    while True:
        page = visit.call("catalog", "names", kind="model", after=after, limit=1000)
        found += [one for one in page.names if GONE not in one.tags]
        if not (after := page.next):
            break
    sights = [_sight(visit, one) for one in found]
    picked: Page[Named] = page_of(chosen(sights, MODELS, asked.filter, asked.order_by or ["name ASC"]), asked)
    return {"registered_models": [_model(visit, one) for one in picked.items], "next_page_token": picked.next}


@endpoint("catalog.describe", "PATCH 2.0 registered-models/update")
def update(visit: Visit, asked: One) -> Any:
    """What is said of it."""
    ref = _head(visit, asked.name).ref
    made = visit.call("catalog", "describe", name=ref, about=asked.description)
    return {"registered_model": _model(visit, made)}


@endpoint("catalog.describe", "POST 2.0 registered-models/rename")
def rename(visit: Visit, asked: One) -> Any:
    """Refused: the log, signatures and approvals speak of a model by its name."""
    _head(visit, asked.name)
    raise Invalid("a model keeps its name", f"register its version as {asked.new_name[:80]!r}: the log knows both")


@endpoint("catalog.delete", "DELETE 2.0 registered-models/delete")
def delete(visit: Visit, asked: One) -> Any:
    """Every version, and then the name is not shown any more."""
    head = _head(visit, asked.name)
    for version in _versions(visit, head.ref):
        visit.call("catalog", "delete", name=version.ref, reason="its name was deleted by an MLflow client")
    visit.call("catalog", "describe", name=head.ref, tags={GONE: "yes"})
    return {}


@endpoint("catalog.describe", "POST 2.0 registered-models/set-tag")
def set_tag(visit: Visit, asked: One) -> Any:
    """One tag of a name."""
    visit.call("catalog", "describe", name=_head(visit, asked.name).ref, tags={_own(asked.key): asked.value})
    return {}


@endpoint("catalog.describe", "DELETE 2.0 registered-models/delete-tag")
def delete_tag(visit: Visit, asked: One) -> Any:
    """Take one away."""
    visit.call("catalog", "describe", name=_head(visit, asked.name).ref, drop=(_own(asked.key),))
    return {}


@endpoint("catalog.tag", "POST 2.0 registered-models/alias")
def set_alias(visit: Visit, asked: One) -> Any:
    """A word for a version; the words of stages have gates before them."""
    ref = version_ref(visit, asked)
    if asked.alias in ("staging", "production"):
        _promote(visit, ref, asked.alias)
    else:
        visit.call("catalog", "tag", name=ref, alias=asked.alias)
    return {}


@endpoint("catalog.untag", "DELETE 2.0 registered-models/alias")
def delete_alias(visit: Visit, asked: One) -> Any:
    """Take it away; one that is not there is gone already."""
    visit.look("catalog", "untag", name=_head(visit, asked.name).ref, alias=asked.alias)
    return {}


@endpoint("catalog.show", "GET 2.0 registered-models/alias")
def get_by_alias(visit: Visit, asked: One) -> Any:
    """The version that a word means."""
    found = visit.call("catalog", "show", name=model_ref(visit, asked.name).at(asked.alias))
    return {"model_version": _version(visit, found)}


@endpoint(
    "catalog.show", "GET 2.0 registered-models/get-latest-versions", "POST 2.0 registered-models/get-latest-versions"
)
def latest(visit: Visit, asked: One) -> Any:
    """The newest version in each stage that was asked for."""
    wanted = [stage.lower() for stage in asked.stages]
    newest: dict[str, Version] = {}
    for version in _versions(visit, _head(visit, asked.name).ref):
        newest[STAGES.get(version.stage, "None")] = version
    found = [version for stage, version in newest.items() if not wanted or stage.lower() in wanted]
    return {"model_versions": [_version(visit, one) for one in found]}


@endpoint("track.register", "POST 2.0 model-versions/create")
def create_version(visit: Visit, asked: CreateVersion) -> Any:
    """A run's files or a logged model become the next version. There is no other place they could come from."""
    ref = _head(visit, asked.name).ref
    kept = {SOURCE: asked.source, RUN: asked.run_id, MODEL: asked.model_id}
    tags = {_own(key): value for key, value in mapping(asked.tags).items()}
    tags |= {key: value for key, value in kept.items() if value}
    owner, path = source_of(visit, asked.source)
    made = visit.call("track", "register", run=owner, path=path, model=ref, message=asked.description, tags=tags)
    return {"model_version": _version(visit, visit.call("catalog", "show", name=made))}


@endpoint("catalog.show", "GET 2.0 model-versions/get")
def get_version(visit: Visit, asked: One) -> Any:
    """One version."""
    return {"model_version": _version(visit, _shown(visit, asked))}


@endpoint("catalog.annotate", "PATCH 2.0 model-versions/update")
def update_version(visit: Visit, asked: One) -> Any:
    """What is said of it."""
    made = visit.call("catalog", "annotate", name=version_ref(visit, asked), message=asked.description)
    return {"model_version": _version(visit, made)}


@endpoint("catalog.delete", "DELETE 2.0 model-versions/delete")
def delete_version(visit: Visit, asked: One) -> Any:
    """It leaves a tombstone: what it was, and why it went."""
    visit.call("catalog", "delete", name=version_ref(visit, asked), reason="deleted by an MLflow client")
    return {}


@endpoint("catalog.list", "GET 2.0 model-versions/search")
def search_versions(visit: Visit, asked: Search) -> Any:
    """Those of a filter, in an order, a page at a time."""
    named = re.search(r"\bname\s*=\s*(['\"])(.+?)\1", asked.filter)
    if named:
        head = visit.look("catalog", "about", name=model_ref(visit, named[2]))
        found = _versions(visit, head.ref) if head is not None else []
    else:
        heads = visit.call("catalog", "names", kind="model", limit=1000).names
        found = [version for head in heads for version in _versions(visit, head.ref)]
    sights = [_version_sight(visit, one) for one in reversed(found)]
    picked: Page[Version] = page_of(chosen(sights, VERSIONS, asked.filter, asked.order_by), asked)
    return {"model_versions": [_version(visit, one) for one in picked.items], "next_page_token": picked.next}


@endpoint("catalog.show", "GET 2.0 model-versions/get-download-uri")
def download_uri(visit: Visit, asked: One) -> Any:
    """Where its files are read: from the catalog, whatever became of the run."""
    ref = _shown(visit, asked).ref
    return {"artifact_uri": f"{SCHEME}{REGISTRY}/{ref.project}/{ref.name}/{ref.version}"}


@endpoint("catalog.annotate", "POST 2.0 model-versions/set-tag")
def set_version_tag(visit: Visit, asked: One) -> Any:
    """One tag of a version."""
    visit.call("catalog", "annotate", name=version_ref(visit, asked), tags={_own(asked.key): asked.value})
    return {}


@endpoint("catalog.annotate", "DELETE 2.0 model-versions/delete-tag")
def delete_version_tag(visit: Visit, asked: One) -> Any:
    """Take one away."""
    visit.call("catalog", "annotate", name=version_ref(visit, asked), drop=(_own(asked.key),))
    return {}


@endpoint("catalog.promote", "POST 2.0 model-versions/transition-stage")
def transition(visit: Visit, asked: One) -> Any:
    """Into a stage, through its gate. One still waiting for somebody is an error that says for whom."""
    stage = next((ours for ours, theirs in STAGES.items() if theirs.lower() == asked.stage.lower()), "")
    if not stage or stage == "experiment":
        raise Invalid(f"{asked.stage[:40]!r} is no stage to move to", "Staging, Production or Archived")
    ref = version_ref(visit, asked)
    _promote(visit, ref, stage)
    return {"model_version": _version(visit, visit.call("catalog", "show", name=ref))}


def source_of(visit: Visit, source: str) -> tuple[Ref, str]:
    """Whose files a source means: a run's or a logged model's of this platform, or Invalid."""
    if found := _RUNS.fullmatch(source):
        return run_ref(visit, found[1]), plain_path(found[2] or "")
    if found := _LOGGED.fullmatch(source):
        return output_ref(visit, found[1]), ""
    if source.startswith(SCHEME) and not source.startswith(f"{SCHEME}/"):
        place = place_of(visit, plain_path(source.removeprefix(SCHEME).rstrip("/")))
        if place.owner.kind == "run" or (place.owner.kind == "output" and not place.path):
            return place.owner, place.path
    raise Invalid(
        "a version is made of a run's artefacts or a logged model", "runs:/…, models:/m-… or its artifact_uri"
    )


def _promote(visit: Visit, ref: Ref, stage: str) -> None:
    done = visit.call("catalog", "promote", name=ref, stage=stage, reason="asked by an MLflow client")
    if done.state != "done":
        raise Denied(f"{ref} is not in {stage}: {done.why or done.state}", done.next, ref)


def _head(visit: Visit, name: str) -> Named:
    found: Named = visit.call("catalog", "about", name=model_ref(visit, name))
    if GONE in found.tags:
        raise NotFound(f"there is no model {name[:80]!r}", "it was deleted; create it again")
    return found


def _shown(visit: Visit, asked: One) -> Version:
    found: Version = visit.call("catalog", "show", name=version_ref(visit, asked))
    if found.state != "live":
        raise NotFound(f"version {asked.version} of {asked.name[:80]!r} was deleted", "choose another", found.ref)
    return found


def _versions(visit: Visit, ref: Ref) -> list[Version]:
    """Every version of a name that still stands, by number."""
    found, after = list[Version](), ""
    while True:
        page = visit.call("catalog", "list", kind="model", project=ref.project, name=ref.name, after=after, limit=1000)
        found += page.versions
        if not (after := page.next):
            return sorted(found, key=lambda version: int(version.ref.version[1:]))


def _own(key: str) -> str:
    if key in OURS:
        raise Invalid(f"{key} is kept by the platform", "choose another key")
    return key


def _name(visit: Visit, ref: Ref, tags: Any) -> str:
    return shown_name(tags.get(NAME) or name_of(ref), visit.workspace)


def _tags(tags: Any) -> list[dict[str, str]]:
    return pairs({key: value for key, value in tags.items() if key not in OURS})


def _sight(visit: Visit, one: Named) -> Sight:
    times = {"last_updated_timestamp": millis(one.changed_at), "creation_timestamp": millis(one.made_at)}
    return Sight(one, {"name": _name(visit, one.ref, one.tags), **times}, one.tags)


def _version_sight(visit: Visit, one: Version) -> Sight:
    shown = _version(visit, one)
    number = {"version_number": int(shown["version"]), "source_path": shown["source"]}
    return Sight(one, shown | number, one.tags)


def _model(visit: Visit, one: Named) -> dict[str, Any]:
    newest = visit.look("catalog", "show", name=one.ref.at(one.newest)) if one.newest else None
    return {
        "name": _name(visit, one.ref, one.tags),
        "creation_timestamp": millis(one.made_at),
        "last_updated_timestamp": millis(one.changed_at),
        "user_id": one.author,
        "description": one.about,
        "latest_versions": [_version(visit, newest)] if newest is not None else [],
        "tags": _tags(one.tags),
        "aliases": [{"alias": alias, "version": version[1:]} for alias, version in one.aliases.items()],
    }


def _version(visit: Visit, one: Version) -> dict[str, Any]:
    run = one.tags.get(RUN) or (one.card.run.rpartition("/")[2].partition("@")[0] if one.card else "")
    text = _name(visit, one.ref, {})
    if is_digested(one.ref):
        text = _name(visit, one.ref, visit.call("catalog", "about", name=one.ref.bare).tags)
    return {
        "name": text,
        "version": one.ref.version[1:],
        "creation_timestamp": millis(one.made_at),
        "last_updated_timestamp": millis(one.made_at),
        "user_id": one.author,
        "current_stage": STAGES.get(one.stage, "None"),
        "description": one.message,
        "source": one.tags.get(SOURCE) or f"{SCHEME}{REGISTRY}/{one.ref.project}/{one.ref.name}/{one.ref.version}",
        "run_id": run,
        "status": "READY",
        "tags": _tags(one.tags),
        "aliases": list(one.aliases),
        **({"model_id": one.tags[MODEL]} if MODEL in one.tags else {}),
    }
