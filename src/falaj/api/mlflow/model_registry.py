"""The model registry as MLflow's clients know it, over the catalog: names, versions, aliases, gated stages."""

import re
from typing import Any

import msgspec

from falaj.api.mlflow.artifacts import ARTIFACT_SCHEME, REGISTRY_PREFIX, locate_artifact, require_plain_path
from falaj.api.mlflow.coding import (
    Int64,
    KeyValue,
    MlflowContext,
    MlflowEndpoint,
    MlflowRequest,
    from_key_values,
    to_key_values,
    to_milliseconds,
)
from falaj.api.mlflow.filters import MODEL_FIELDS, VERSION_FIELDS, FilterRow, ItemPage, cut_page, filter_items
from falaj.api.mlflow.resource_refs import require_logged_model_ref, require_run_ref
from falaj.catalog.lifecycle_records import NameView
from falaj.catalog.records import CatalogVersion
from falaj.catalog.service_base import MOVED_TAG
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.track.name_mapping import (
    check_model_name,
    is_digested,
    to_full_name,
    to_reference,
    to_shown_name,
    to_text_name,
)

MLFLOW_STAGE = {"experiment": "None", "staging": "Staging", "production": "Production", "retired": "Archived"}
NAME_TAG, DELETED_TAG = "falaj.name", "falaj.gone"
SOURCE_TAG, RUN_TAG, MODEL_TAG, REQUEST_TAG = "falaj.source", "falaj.run", "falaj.model", "falaj.asked"
RESERVED_TAGS = (NAME_TAG, MOVED_TAG, DELETED_TAG, SOURCE_TAG, RUN_TAG, MODEL_TAG, REQUEST_TAG)
"""Tags that keep what MLflow says of a model or a version and we have no field for; clients do not see them."""
PROMPT_TAG = "mlflow.prompt.is_prompt"
NOT_A_PROMPT = {PROMPT_TAG: "false"}
"""Clients ask for models that are no prompts; a clause about a tag that is not there would be false."""
_RUN_URI_PATTERN = re.compile(r"runs:/([0-9a-f]{32})(?:/(.+))?")
_LOGGED_MODEL_URI_PATTERN = re.compile(r"models:/(m-[0-9a-f]{32})/?")
_VERSION_URI_PATTERN = re.compile(r"models:/(.{1,500})/([1-9][0-9]{0,17})")


class RegistryRequest(MlflowRequest):
    """What names a model or one of its versions, and may say something of it."""

    name: str
    version: str = ""
    new_name: str = ""
    description: str = ""
    tags: list[KeyValue] = msgspec.field(default_factory=list)
    key: str = ""
    value: str = ""
    alias: str = ""
    stage: str = ""
    stages: list[str] = msgspec.field(default_factory=list)
    source: str = ""
    run_id: str = ""
    model_id: str = ""


class SearchRegistryRequest(MlflowRequest):
    """registered-models/search and model-versions/search."""

    filter: str = ""
    max_results: Int64 = 100
    order_by: list[str] = msgspec.field(default_factory=list)
    page_token: str = ""


def to_model_ref(context: MlflowContext, name: str) -> Ref:
    """The reference that a name has from the start."""
    check_model_name(name)
    return to_reference("model", to_full_name(name, context.workspace))


def require_version_ref(context: MlflowContext, request: RegistryRequest) -> Ref:
    """The reference of a version: MLflow counts 1, 2, 3."""
    if not re.fullmatch(r"[1-9][0-9]{0,17}", request.version):
        raise Invalid(f"{request.version[:40]!r} is no version", "a whole number, from 1")
    return _require_model(context, request.name).ref.at(f"v{request.version}")


def _create_model(context: MlflowContext, request: RegistryRequest) -> Any:
    """A name without versions yet."""
    ref, request_tags = to_model_ref(context, request.name), _read_request_tags(request)
    existing_model: NameView | None = context.look("catalog", "about", name=ref)
    if existing_model is not None and DELETED_TAG not in existing_model.tags:
        raise Conflict(f"there is a model {request.name[:80]!r}", "add a version to it, or choose another name")
    tags = request_tags | ({NAME_TAG: to_full_name(request.name, context.workspace)} if is_digested(ref) else {})
    return _update_model(context, ref, about=request.description, tags=tags, drop=(DELETED_TAG,))


def _rename_model(context: MlflowContext, request: RegistryRequest) -> Any:
    """Call it something else. Its reference stays, for the log speaks of it; the new name points to it."""
    model, ref = _require_model(context, request.name), to_model_ref(context, request.new_name)
    existing_model: NameView | None = context.look("catalog", "about", name=ref)
    if (
        existing_model is not None
        and ref != model.ref
        and DELETED_TAG not in existing_model.tags
        and existing_model.tags.get(MOVED_TAG) != str(model.ref)
    ):
        raise Conflict(f"there is a model {request.new_name[:80]!r}", "choose another name")
    if ref != model.ref:
        context.call("catalog", "describe", name=ref, tags={MOVED_TAG: str(model.ref)}, drop=(DELETED_TAG,))
    return _update_model(context, model.ref, tags={NAME_TAG: to_full_name(request.new_name, context.workspace)})


def _search_models(context: MlflowContext, request: SearchRegistryRequest) -> Any:
    filter_rows = [_to_model_row(context, model) for model in _list_models(context)]
    page: ItemPage[NameView] = cut_page(
        filter_items(filter_rows, MODEL_FIELDS, request.filter, request.order_by or ["name ASC"]), request
    )
    return {
        "registered_models": [_to_mlflow_model(context, model) for model in page.items],
        "next_page_token": page.next,
    }


def _delete_model(context: MlflowContext, request: RegistryRequest) -> Any:
    """Every version, and then the name is not shown any more."""
    model = _require_model(context, request.name)
    for version in _list_versions(context, model.ref):
        context.call("catalog", "delete", name=version.ref, reason="its name was deleted by an MLflow client")
    return context.do("catalog", "describe", name=model.ref, tags={DELETED_TAG: "yes"})


def _set_alias(context: MlflowContext, request: RegistryRequest) -> Any:
    """A word for a version; the words of stages have gates before them."""
    ref = require_version_ref(context, request)
    if request.alias in ("staging", "production"):
        return _promote_version(context, ref, request.alias)
    return context.do("catalog", "tag", name=ref, alias=request.alias)


def _delete_alias(context: MlflowContext, request: RegistryRequest) -> Any:
    """Take it away; one that is not there is gone already."""
    context.look("catalog", "untag", name=_require_model(context, request.name).ref, alias=request.alias)
    return {}


def _get_latest_versions(context: MlflowContext, request: RegistryRequest) -> Any:
    """The newest version in each stage that was asked for."""
    stage_names = [stage.lower() for stage in request.stages]
    newest_by_stage = {
        MLFLOW_STAGE.get(stage_version.stage, "None"): stage_version
        for stage_version in _list_versions(context, _require_model(context, request.name).ref)
    }
    versions = [
        version for stage, version in newest_by_stage.items() if not stage_names or stage.lower() in stage_names
    ]
    return {"model_versions": [_to_mlflow_version(context, stage_version) for stage_version in versions]}


def _create_version(context: MlflowContext, request: RegistryRequest) -> Any:
    """A run's files, a logged model or another version become the next. They can come from nowhere else."""
    ref, (source_ref, path) = _require_model(context, request.name).ref, resolve_source(context, request.source)
    # MLflow counts what is registered, and the catalog what differs: the request does.
    kept_tags = {
        SOURCE_TAG: request.source,
        RUN_TAG: request.run_id,
        MODEL_TAG: request.model_id,
        REQUEST_TAG: context.ctx.request,
    }
    tags = _read_request_tags(request) | {key: value for key, value in kept_tags.items() if value}
    created_ref = context.call(
        "track", "register", run=source_ref, path=path, model=ref, message=request.description, tags=tags
    )
    return {"model_version": _to_mlflow_version(context, context.call("catalog", "show", name=created_ref))}


def _search_versions(context: MlflowContext, request: SearchRegistryRequest) -> Any:
    name_match = re.search(r"\bname\s*=\s*(['\"])(.+?)\1", request.filter)
    models = [
        version
        for version in _list_models(context)
        if not name_match or _get_shown_name(context, version.ref, version.tags) == name_match[2]
    ]
    filter_rows = [
        _to_version_row(context, version, model)
        for model in models
        for version in reversed(_list_versions(context, model.ref))
    ]
    page: ItemPage[Any] = cut_page(filter_items(filter_rows, VERSION_FIELDS, request.filter, request.order_by), request)
    return {"model_versions": page.items, "next_page_token": page.next}


def _get_download_uri(context: MlflowContext, request: RegistryRequest) -> Any:
    """Where its files are read: from the catalog, whatever became of the run."""
    ref = _require_live_version(context, request).ref
    return {"artifact_uri": f"{ARTIFACT_SCHEME}{REGISTRY_PREFIX}/{ref.project}/{ref.name}/{ref.version}"}


def _transition_stage(context: MlflowContext, request: RegistryRequest) -> Any:
    """Into a stage, through its gate. One still waiting for somebody is an error that says for whom."""
    stage = next(
        (
            own_stage
            for own_stage, mlflow_stage in MLFLOW_STAGE.items()
            if mlflow_stage.lower() == request.stage.lower()
        ),
        "",
    )
    if not stage or stage == "experiment":
        raise Invalid(f"{request.stage[:40]!r} is no stage to move to", "Staging, Production or Archived")
    ref = require_version_ref(context, request)
    _promote_version(context, ref, stage)
    return {"model_version": _to_mlflow_version(context, context.call("catalog", "show", name=ref))}


def resolve_source(context: MlflowContext, source: str) -> tuple[Ref, str]:
    """Whose files a source means: a run's, a logged model's or a version's of this platform, or Invalid."""
    if uri_match := _RUN_URI_PATTERN.fullmatch(source):
        return require_run_ref(context, uri_match[1]), require_plain_path(uri_match[2] or "")
    if uri_match := _LOGGED_MODEL_URI_PATTERN.fullmatch(source):
        return require_logged_model_ref(context, uri_match[1]), ""
    if uri_match := _VERSION_URI_PATTERN.fullmatch(source):
        return require_version_ref(context, RegistryRequest(name=uri_match[1], version=uri_match[2])), ""
    if source.startswith(ARTIFACT_SCHEME) and not source.startswith(f"{ARTIFACT_SCHEME}/"):
        location = locate_artifact(context, require_plain_path(source.removeprefix(ARTIFACT_SCHEME).rstrip("/")))
        if location.owner.kind == "run" or (location.owner.kind == "output" and not location.path):
            return location.owner, location.path
    raise Invalid(
        "a version is made of a run's artefacts, a logged model or a version",
        "runs:/…, models:/m-… or its artifact_uri, models:/name/1",
    )


def _update_model(context: MlflowContext, ref: Ref, **changes: Any) -> Any:
    return {"registered_model": _to_mlflow_model(context, context.call("catalog", "describe", name=ref, **changes))}


def _update_version(context: MlflowContext, request: RegistryRequest, **changes: Any) -> Any:
    return {
        "model_version": _to_mlflow_version(
            context, context.call("catalog", "annotate", name=require_version_ref(context, request), **changes)
        )
    }


def _promote_version(context: MlflowContext, ref: Ref, stage: str) -> dict[str, Any]:
    promotion = context.call("catalog", "promote", name=ref, stage=stage, reason="asked by an MLflow client")
    if promotion.state != "done":
        raise Denied(f"{ref} is not in {stage}: {promotion.why or promotion.state}", promotion.next, ref)
    return {}


def _require_model(context: MlflowContext, name: str) -> NameView:
    """The model that has this name now, or NotFound."""
    qualified_name = to_full_name(name, context.workspace)
    model: NameView = context.call("catalog", "about", name=to_model_ref(context, name))
    if MOVED_TAG in model.tags:
        model = context.call("catalog", "about", name=Ref.parse(model.tags[MOVED_TAG]))
    if DELETED_TAG in model.tags or model.tags.get(NAME_TAG, qualified_name) != qualified_name:
        raise NotFound(f"there is no model {name[:80]!r}", "it was deleted or has another name")
    return model


def _list_models(context: MlflowContext) -> list[NameView]:
    """Every model there is."""
    models = context.all("catalog", "names", "names", kind="model")
    return [model for model in models if DELETED_TAG not in model.tags and MOVED_TAG not in model.tags]


def _require_live_version(context: MlflowContext, request: RegistryRequest) -> CatalogVersion:
    version: CatalogVersion = context.call("catalog", "show", name=require_version_ref(context, request))
    if version.state != "live":
        raise NotFound(f"version {request.version} of {request.name[:80]!r} was deleted", "choose another", version.ref)
    return version


def _list_versions(context: MlflowContext, ref: Ref) -> list[CatalogVersion]:
    """Every version of a name that still stands, by number."""
    versions = context.all("catalog", "list", "versions", kind="model", project=ref.project, name=ref.name)
    return sorted(versions, key=lambda version: int(version.ref.version[1:]))


def _require_own_key(key: str) -> str:
    if key in RESERVED_TAGS:
        raise Invalid(f"{key} is kept by the platform", "choose another key")
    return key


def _read_request_tags(request: RegistryRequest) -> dict[str, str]:
    """The tags of a new model or version. Clients keep prompts as models, too: those are refused before one is made."""
    if any(pair.key == PROMPT_TAG and pair.value.lower() == "true" for pair in request.tags):
        raise Invalid("prompts are not kept here", "keep them with the code, or as files of a run")
    return {_require_own_key(key): value for key, value in from_key_values(request.tags, 100_000).items()}


def _get_shown_name(context: MlflowContext, ref: Ref, tags: Any) -> str:
    return to_shown_name(tags.get(NAME_TAG) or to_text_name(ref), context.workspace)


def _to_mlflow_tags(tags: Any) -> list[dict[str, str]]:
    return to_key_values({key: value for key, value in tags.items() if key not in RESERVED_TAGS})


def _to_model_row(context: MlflowContext, model: NameView) -> FilterRow:
    times = {
        "last_updated_timestamp": to_milliseconds(model.changed_at),
        "creation_timestamp": to_milliseconds(model.made_at),
    }
    return FilterRow(
        model, {"name": _get_shown_name(context, model.ref, model.tags), **times}, {**NOT_A_PROMPT, **model.tags}
    )


def _to_version_row(context: MlflowContext, version: CatalogVersion, model: NameView) -> FilterRow:
    mlflow_version = _to_mlflow_version(context, version, model)
    number_and_source = {"version_number": int(mlflow_version["version"]), "source_path": mlflow_version["source"]}
    return FilterRow(mlflow_version, mlflow_version | number_and_source, {**NOT_A_PROMPT, **version.tags})


def _to_mlflow_model(context: MlflowContext, model: NameView) -> dict[str, Any]:
    newest = context.look("catalog", "show", name=model.ref.at(model.newest)) if model.newest else None
    return {
        "name": _get_shown_name(context, model.ref, model.tags),
        "creation_timestamp": to_milliseconds(model.made_at),
        "last_updated_timestamp": to_milliseconds(model.changed_at),
        "user_id": model.author,
        "description": model.about,
        "latest_versions": [_to_mlflow_version(context, newest, model)] if newest is not None else [],
        "tags": _to_mlflow_tags(model.tags),
        "aliases": [{"alias": alias, "version": version[1:]} for alias, version in model.aliases.items()],
    }


def _to_mlflow_version(
    context: MlflowContext, version: CatalogVersion, model: NameView | None = None
) -> dict[str, Any]:
    run_id = version.tags.get(RUN_TAG) or (
        version.card.run.rpartition("/")[2].partition("@")[0] if version.card else ""
    )
    tags = (model or context.call("catalog", "about", name=version.ref.bare)).tags
    return {
        "name": _get_shown_name(context, version.ref, tags),
        "version": version.ref.version[1:],
        "creation_timestamp": to_milliseconds(version.made_at),
        "last_updated_timestamp": to_milliseconds(version.made_at),
        "user_id": version.author,
        "current_stage": MLFLOW_STAGE.get(version.stage, "None"),
        "description": version.message,
        "source": version.tags.get(SOURCE_TAG)
        or f"{ARTIFACT_SCHEME}{REGISTRY_PREFIX}/{version.ref.project}/{version.ref.name}/{version.ref.version}",
        "run_id": run_id,
        "status": "READY",
        "tags": _to_mlflow_tags(version.tags),
        "aliases": list(version.aliases),
        **({"model_id": version.tags[MODEL_TAG]} if MODEL_TAG in version.tags else {}),
    }


ENDPOINTS = (
    MlflowEndpoint("POST 2.0 registered-models/create", "catalog.describe", RegistryRequest, _create_model),
    MlflowEndpoint(
        "GET 2.0 registered-models/get",
        "catalog.about",
        RegistryRequest,
        lambda context, request: {"registered_model": _to_mlflow_model(context, _require_model(context, request.name))},
    ),
    MlflowEndpoint("GET 2.0 registered-models/search", "catalog.names", SearchRegistryRequest, _search_models),
    MlflowEndpoint(
        "PATCH 2.0 registered-models/update",
        "catalog.describe",
        RegistryRequest,
        lambda context, request: _update_model(
            context, _require_model(context, request.name).ref, about=request.description
        ),
    ),
    MlflowEndpoint("POST 2.0 registered-models/rename", "catalog.describe", RegistryRequest, _rename_model),
    MlflowEndpoint("DELETE 2.0 registered-models/delete", "catalog.delete", RegistryRequest, _delete_model),
    MlflowEndpoint(
        "POST 2.0 registered-models/set-tag",
        "catalog.describe",
        RegistryRequest,
        lambda context, request: _update_model(
            context, _require_model(context, request.name).ref, tags={_require_own_key(request.key): request.value}
        ),
    ),
    MlflowEndpoint(
        "DELETE 2.0 registered-models/delete-tag",
        "catalog.describe",
        RegistryRequest,
        lambda context, request: _update_model(
            context, _require_model(context, request.name).ref, drop=(_require_own_key(request.key),)
        ),
    ),
    MlflowEndpoint("POST 2.0 registered-models/alias", "catalog.tag", RegistryRequest, _set_alias),
    MlflowEndpoint("DELETE 2.0 registered-models/alias", "catalog.untag", RegistryRequest, _delete_alias),
    MlflowEndpoint(
        "GET 2.0 registered-models/alias",
        "catalog.show",
        RegistryRequest,
        lambda context, request: {
            "model_version": _to_mlflow_version(
                context,
                context.call("catalog", "show", name=_require_model(context, request.name).ref.at(request.alias)),
            )
        },
    ),
    MlflowEndpoint(
        "GET 2.0 registered-models/get-latest-versions", "catalog.show", RegistryRequest, _get_latest_versions
    ),
    MlflowEndpoint(
        "POST 2.0 registered-models/get-latest-versions", "catalog.show", RegistryRequest, _get_latest_versions
    ),
    MlflowEndpoint("POST 2.0 model-versions/create", "track.register", RegistryRequest, _create_version),
    MlflowEndpoint(
        "GET 2.0 model-versions/get",
        "catalog.show",
        RegistryRequest,
        lambda context, request: {
            "model_version": _to_mlflow_version(context, _require_live_version(context, request))
        },
    ),
    MlflowEndpoint(
        "PATCH 2.0 model-versions/update",
        "catalog.annotate",
        RegistryRequest,
        lambda context, request: _update_version(context, request, message=request.description),
    ),
    MlflowEndpoint(
        "DELETE 2.0 model-versions/delete",
        "catalog.delete",
        RegistryRequest,
        lambda context, request: context.do(
            "catalog", "delete", name=require_version_ref(context, request), reason="deleted by an MLflow client"
        ),
    ),
    MlflowEndpoint("GET 2.0 model-versions/search", "catalog.list", SearchRegistryRequest, _search_versions),
    MlflowEndpoint("GET 2.0 model-versions/get-download-uri", "catalog.show", RegistryRequest, _get_download_uri),
    MlflowEndpoint(
        "POST 2.0 model-versions/set-tag",
        "catalog.annotate",
        RegistryRequest,
        lambda context, request: _update_version(context, request, tags={_require_own_key(request.key): request.value}),
    ),
    MlflowEndpoint(
        "DELETE 2.0 model-versions/delete-tag",
        "catalog.annotate",
        RegistryRequest,
        lambda context, request: _update_version(context, request, drop=(_require_own_key(request.key),)),
    ),
    MlflowEndpoint("POST 2.0 model-versions/transition-stage", "catalog.promote", RegistryRequest, _transition_stage),
)
