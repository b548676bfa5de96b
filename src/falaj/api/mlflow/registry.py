"""The model registry as MLflow's clients know it, over the catalog: names, versions, aliases, gated stages."""

import re
from typing import Any

import msgspec

from falaj.api.mlflow.artifacts import REGISTRY, SCHEME, place_of, plain_path
from falaj.api.mlflow.coding import Endpoint, Int, Pair, Question, Visit, mapping, millis, pairs
from falaj.api.mlflow.filters import MODELS, VERSIONS, Page, Sight, chosen, page_of
from falaj.api.mlflow.ids import output_ref, run_ref
from falaj.catalog.life_records import Named
from falaj.catalog.records import Version
from falaj.catalog.shelf import AT
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.track.names import check_model_name, full_name, is_digested, name_of, ref_of, shown_name

STAGES = {"experiment": "None", "staging": "Staging", "production": "Production", "retired": "Archived"}
NAME, GONE = "falaj.name", "falaj.gone"
SOURCE, RUN, MODEL, ASKED = "falaj.source", "falaj.run", "falaj.model", "falaj.asked"
OURS = (NAME, AT, GONE, SOURCE, RUN, MODEL, ASKED)
"""Tags that keep what MLflow says of a model or a version and we have no field for; clients do not see them."""
PROMPT = "mlflow.prompt.is_prompt"
NO_PROMPT = {PROMPT: "false"}
"""Clients ask for models that are no prompts; a clause about a tag that is not there would be false."""
_RUNS = re.compile(r"runs:/([0-9a-f]{32})(?:/(.+))?")
_LOGGED = re.compile(r"models:/(m-[0-9a-f]{32})/?")
_VERSION = re.compile(r"models:/(.{1,500})/([1-9][0-9]{0,17})")


class One(Question):
    """What names a model or one of its versions, and may say something of it."""

    name: str
    version: str = ""
    new_name: str = ""
    description: str = ""
    tags: list[Pair] = msgspec.field(default_factory=list)
    key: str = ""
    value: str = ""
    alias: str = ""
    stage: str = ""
    stages: list[str] = msgspec.field(default_factory=list)
    source: str = ""
    run_id: str = ""
    model_id: str = ""


class Search(Question):
    """registered-models/search and model-versions/search."""

    filter: str = ""
    max_results: Int = 100
    order_by: list[str] = msgspec.field(default_factory=list)
    page_token: str = ""


def model_ref(visit: Visit, name: str) -> Ref:
    """The reference that a name has from the start."""
    check_model_name(name)
    return ref_of("model", full_name(name, visit.workspace))


def version_ref(visit: Visit, asked: One) -> Ref:
    """The reference of a version: MLflow counts 1, 2, 3."""
    if not re.fullmatch(r"[1-9][0-9]{0,17}", asked.version):
        raise Invalid(f"{asked.version[:40]!r} is no version", "a whole number, from 1")
    return _head(visit, asked.name).ref.at(f"v{asked.version}")


def _create(visit: Visit, asked: One) -> Any:
    """A name without versions yet."""
    ref, owned = model_ref(visit, asked.name), _owned(asked)
    known: Named | None = visit.look("catalog", "about", name=ref)
    if known is not None and GONE not in known.tags:
        raise Conflict(f"there is a model {asked.name[:80]!r}", "add a version to it, or choose another name")
    tags = owned | ({NAME: full_name(asked.name, visit.workspace)} if is_digested(ref) else {})
    return _say(visit, ref, about=asked.description, tags=tags, drop=(GONE,))


def _rename(visit: Visit, asked: One) -> Any:
    """Call it something else. Its reference stays, for the log speaks of it; the new name points to it."""
    head, ref = _head(visit, asked.name), model_ref(visit, asked.new_name)
    known: Named | None = visit.look("catalog", "about", name=ref)
    if known is not None and ref != head.ref and GONE not in known.tags and known.tags.get(AT) != str(head.ref):
        raise Conflict(f"there is a model {asked.new_name[:80]!r}", "choose another name")
    if ref != head.ref:
        visit.call("catalog", "describe", name=ref, tags={AT: str(head.ref)}, drop=(GONE,))
    return _say(visit, head.ref, tags={NAME: full_name(asked.new_name, visit.workspace)})


def _search(visit: Visit, asked: Search) -> Any:
    sights = [_sight(visit, one) for one in _heads(visit)]
    picked: Page[Named] = page_of(chosen(sights, MODELS, asked.filter, asked.order_by or ["name ASC"]), asked)
    return {"registered_models": [_model(visit, one) for one in picked.items], "next_page_token": picked.next}


def _delete(visit: Visit, asked: One) -> Any:
    """Every version, and then the name is not shown any more."""
    head = _head(visit, asked.name)
    for version in _versions(visit, head.ref):
        visit.call("catalog", "delete", name=version.ref, reason="its name was deleted by an MLflow client")
    return visit.do("catalog", "describe", name=head.ref, tags={GONE: "yes"})


def _set_alias(visit: Visit, asked: One) -> Any:
    """A word for a version; the words of stages have gates before them."""
    ref = version_ref(visit, asked)
    if asked.alias in ("staging", "production"):
        return _promote(visit, ref, asked.alias)
    return visit.do("catalog", "tag", name=ref, alias=asked.alias)


def _delete_alias(visit: Visit, asked: One) -> Any:
    """Take it away; one that is not there is gone already."""
    visit.look("catalog", "untag", name=_head(visit, asked.name).ref, alias=asked.alias)
    return {}


def _latest(visit: Visit, asked: One) -> Any:
    """The newest version in each stage that was asked for."""
    wanted = [stage.lower() for stage in asked.stages]
    newest = {STAGES.get(one.stage, "None"): one for one in _versions(visit, _head(visit, asked.name).ref)}
    found = [version for stage, version in newest.items() if not wanted or stage.lower() in wanted]
    return {"model_versions": [_version(visit, one) for one in found]}


def _create_version(visit: Visit, asked: One) -> Any:
    """A run's files, a logged model or another version become the next. They can come from nowhere else."""
    ref, (owner, path) = _head(visit, asked.name).ref, source_of(visit, asked.source)
    # MLflow counts what is registered, and the catalog what differs: the request does.
    kept = {SOURCE: asked.source, RUN: asked.run_id, MODEL: asked.model_id, ASKED: visit.ctx.request}
    tags = _owned(asked) | {key: value for key, value in kept.items() if value}
    made = visit.call("track", "register", run=owner, path=path, model=ref, message=asked.description, tags=tags)
    return {"model_version": _version(visit, visit.call("catalog", "show", name=made))}


def _search_versions(visit: Visit, asked: Search) -> Any:
    named = re.search(r"\bname\s*=\s*(['\"])(.+?)\1", asked.filter)
    heads = [one for one in _heads(visit) if not named or _name(visit, one.ref, one.tags) == named[2]]
    sights = [_version_sight(visit, one, head) for head in heads for one in reversed(_versions(visit, head.ref))]
    picked: Page[Any] = page_of(chosen(sights, VERSIONS, asked.filter, asked.order_by), asked)
    return {"model_versions": picked.items, "next_page_token": picked.next}


def _download_uri(visit: Visit, asked: One) -> Any:
    """Where its files are read: from the catalog, whatever became of the run."""
    ref = _shown(visit, asked).ref
    return {"artifact_uri": f"{SCHEME}{REGISTRY}/{ref.project}/{ref.name}/{ref.version}"}


def _transition(visit: Visit, asked: One) -> Any:
    """Into a stage, through its gate. One still waiting for somebody is an error that says for whom."""
    stage = next((ours for ours, theirs in STAGES.items() if theirs.lower() == asked.stage.lower()), "")
    if not stage or stage == "experiment":
        raise Invalid(f"{asked.stage[:40]!r} is no stage to move to", "Staging, Production or Archived")
    ref = version_ref(visit, asked)
    _promote(visit, ref, stage)
    return {"model_version": _version(visit, visit.call("catalog", "show", name=ref))}


def source_of(visit: Visit, source: str) -> tuple[Ref, str]:
    """Whose files a source means: a run's, a logged model's or a version's of this platform, or Invalid."""
    if found := _RUNS.fullmatch(source):
        return run_ref(visit, found[1]), plain_path(found[2] or "")
    if found := _LOGGED.fullmatch(source):
        return output_ref(visit, found[1]), ""
    if found := _VERSION.fullmatch(source):
        return version_ref(visit, One(name=found[1], version=found[2])), ""
    if source.startswith(SCHEME) and not source.startswith(f"{SCHEME}/"):
        place = place_of(visit, plain_path(source.removeprefix(SCHEME).rstrip("/")))
        if place.owner.kind == "run" or (place.owner.kind == "output" and not place.path):
            return place.owner, place.path
    raise Invalid(
        "a version is made of a run's artefacts, a logged model or a version",
        "runs:/…, models:/m-… or its artifact_uri, models:/name/1",
    )


def _say(visit: Visit, ref: Ref, **said: Any) -> Any:
    return {"registered_model": _model(visit, visit.call("catalog", "describe", name=ref, **said))}


def _note(visit: Visit, asked: One, **said: Any) -> Any:
    return {"model_version": _version(visit, visit.call("catalog", "annotate", name=version_ref(visit, asked), **said))}


def _promote(visit: Visit, ref: Ref, stage: str) -> dict[str, Any]:
    done = visit.call("catalog", "promote", name=ref, stage=stage, reason="asked by an MLflow client")
    if done.state != "done":
        raise Denied(f"{ref} is not in {stage}: {done.why or done.state}", done.next, ref)
    return {}


def _head(visit: Visit, name: str) -> Named:
    """The model that has this name now, or NotFound."""
    full = full_name(name, visit.workspace)
    found: Named = visit.call("catalog", "about", name=model_ref(visit, name))
    if AT in found.tags:
        found = visit.call("catalog", "about", name=Ref.parse(found.tags[AT]))
    if GONE in found.tags or found.tags.get(NAME, full) != full:
        raise NotFound(f"there is no model {name[:80]!r}", "it was deleted or has another name")
    return found


def _heads(visit: Visit) -> list[Named]:
    """Every model there is."""
    found = visit.all("catalog", "names", "names", kind="model")
    return [one for one in found if GONE not in one.tags and AT not in one.tags]


def _shown(visit: Visit, asked: One) -> Version:
    found: Version = visit.call("catalog", "show", name=version_ref(visit, asked))
    if found.state != "live":
        raise NotFound(f"version {asked.version} of {asked.name[:80]!r} was deleted", "choose another", found.ref)
    return found


def _versions(visit: Visit, ref: Ref) -> list[Version]:
    """Every version of a name that still stands, by number."""
    found = visit.all("catalog", "list", "versions", kind="model", project=ref.project, name=ref.name)
    return sorted(found, key=lambda version: int(version.ref.version[1:]))


def _own(key: str) -> str:
    if key in OURS:
        raise Invalid(f"{key} is kept by the platform", "choose another key")
    return key


def _owned(asked: One) -> dict[str, str]:
    """The tags of a new model or version. Clients keep prompts as models, too: those are refused before one is made."""
    if any(pair.key == PROMPT and pair.value.lower() == "true" for pair in asked.tags):
        raise Invalid("prompts are not kept here", "keep them with the code, or as files of a run")
    return {_own(key): value for key, value in mapping(asked.tags, 100_000).items()}


def _name(visit: Visit, ref: Ref, tags: Any) -> str:
    return shown_name(tags.get(NAME) or name_of(ref), visit.workspace)


def _tags(tags: Any) -> list[dict[str, str]]:
    return pairs({key: value for key, value in tags.items() if key not in OURS})


def _sight(visit: Visit, one: Named) -> Sight:
    times = {"last_updated_timestamp": millis(one.changed_at), "creation_timestamp": millis(one.made_at)}
    return Sight(one, {"name": _name(visit, one.ref, one.tags), **times}, {**NO_PROMPT, **one.tags})


def _version_sight(visit: Visit, one: Version, head: Named) -> Sight:
    shown = _version(visit, one, head)
    number = {"version_number": int(shown["version"]), "source_path": shown["source"]}
    return Sight(shown, shown | number, {**NO_PROMPT, **one.tags})


def _model(visit: Visit, one: Named) -> dict[str, Any]:
    newest = visit.look("catalog", "show", name=one.ref.at(one.newest)) if one.newest else None
    return {
        "name": _name(visit, one.ref, one.tags),
        "creation_timestamp": millis(one.made_at),
        "last_updated_timestamp": millis(one.changed_at),
        "user_id": one.author,
        "description": one.about,
        "latest_versions": [_version(visit, newest, one)] if newest is not None else [],
        "tags": _tags(one.tags),
        "aliases": [{"alias": alias, "version": version[1:]} for alias, version in one.aliases.items()],
    }


def _version(visit: Visit, one: Version, head: Named | None = None) -> dict[str, Any]:
    run = one.tags.get(RUN) or (one.card.run.rpartition("/")[2].partition("@")[0] if one.card else "")
    tags = (head or visit.call("catalog", "about", name=one.ref.bare)).tags
    return {
        "name": _name(visit, one.ref, tags),
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


ENDPOINTS = (
    Endpoint("POST 2.0 registered-models/create", "catalog.describe", One, _create),
    Endpoint(
        "GET 2.0 registered-models/get", "catalog.about", One,
        lambda visit, asked: {"registered_model": _model(visit, _head(visit, asked.name))},
    ),
    Endpoint("GET 2.0 registered-models/search", "catalog.names", Search, _search),
    Endpoint(
        "PATCH 2.0 registered-models/update", "catalog.describe", One,
        lambda visit, asked: _say(visit, _head(visit, asked.name).ref, about=asked.description),
    ),
    Endpoint("POST 2.0 registered-models/rename", "catalog.describe", One, _rename),
    Endpoint("DELETE 2.0 registered-models/delete", "catalog.delete", One, _delete),
    Endpoint(
        "POST 2.0 registered-models/set-tag", "catalog.describe", One,
        lambda visit, asked: _say(visit, _head(visit, asked.name).ref, tags={_own(asked.key): asked.value}),
    ),
    Endpoint(
        "DELETE 2.0 registered-models/delete-tag", "catalog.describe", One,
        lambda visit, asked: _say(visit, _head(visit, asked.name).ref, drop=(_own(asked.key),)),
    ),
    Endpoint("POST 2.0 registered-models/alias", "catalog.tag", One, _set_alias),
    Endpoint("DELETE 2.0 registered-models/alias", "catalog.untag", One, _delete_alias),
    Endpoint(
        "GET 2.0 registered-models/alias", "catalog.show", One,
        lambda visit, asked: {"model_version": _version(visit, visit.call(
            "catalog", "show", name=_head(visit, asked.name).ref.at(asked.alias)))},
    ),
    Endpoint("GET 2.0 registered-models/get-latest-versions", "catalog.show", One, _latest),
    Endpoint("POST 2.0 registered-models/get-latest-versions", "catalog.show", One, _latest),
    Endpoint("POST 2.0 model-versions/create", "track.register", One, _create_version),
    Endpoint(
        "GET 2.0 model-versions/get", "catalog.show", One,
        lambda visit, asked: {"model_version": _version(visit, _shown(visit, asked))},
    ),
    Endpoint(
        "PATCH 2.0 model-versions/update", "catalog.annotate", One,
        lambda visit, asked: _note(visit, asked, message=asked.description),
    ),
    Endpoint(
        "DELETE 2.0 model-versions/delete", "catalog.delete", One,
        lambda visit, asked: visit.do(
            "catalog", "delete", name=version_ref(visit, asked), reason="deleted by an MLflow client"),
    ),
    Endpoint("GET 2.0 model-versions/search", "catalog.list", Search, _search_versions),
    Endpoint("GET 2.0 model-versions/get-download-uri", "catalog.show", One, _download_uri),
    Endpoint(
        "POST 2.0 model-versions/set-tag", "catalog.annotate", One,
        lambda visit, asked: _note(visit, asked, tags={_own(asked.key): asked.value}),
    ),
    Endpoint(
        "DELETE 2.0 model-versions/delete-tag", "catalog.annotate", One,
        lambda visit, asked: _note(visit, asked, drop=(_own(asked.key),)),
    ),
    Endpoint("POST 2.0 model-versions/transition-stage", "catalog.promote", One, _transition),
)  # fmt: skip
