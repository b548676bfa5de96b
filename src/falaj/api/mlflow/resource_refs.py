"""Ids: what MLflow's clients call things by, as references. Knowing one is no permission: the guard asks on."""

import re
from contextlib import suppress
from typing import Any

from falaj.api.mlflow.coding import MlflowContext
from falaj.core.errors import Conflict, FalajError, NotFound
from falaj.core.ref import Ref
from falaj.track.records import DEFAULT_EXPERIMENT

_RUN_PATTERN = re.compile(r"[0-9a-f]{32}")
_LOGGED_MODEL_PATTERN = re.compile(r"m-[0-9a-f]{32}")
_TRACE_PATTERN = re.compile(r"tr-[0-9a-f]{32}")


def require_experiment_ref(context: MlflowContext, experiment_id: str) -> Ref:
    """The experiment of that number, or NotFound. Number 0 is there from the start: its first user makes it."""
    if experiment_id == "0":
        return _require_default_experiment(context)
    key = (context.ctx.tenant, experiment_id)
    ref = context.places.get(key)
    if ref is None:
        found_ref = (
            _get_tracking_service(context).experiment_ref(*key)
            if experiment_id.isascii() and experiment_id.isdecimal()
            else None
        )
        ref = context.found[key] = _require_found(
            found_ref, "experiment", experiment_id, "mlflow.search_experiments() lists them"
        )
    return ref


def require_run_ref(context: MlflowContext, name: str) -> Ref:
    """The run of that id, or NotFound."""
    key = (context.ctx.tenant, name)
    ref = context.places.get(key)
    if ref is None:
        found_ref = _get_tracking_service(context).run_ref(*key) if _RUN_PATTERN.fullmatch(name) else None
        ref = context.found[key] = _require_found(found_ref, "run", name, "mlflow.search_runs() lists them")
    return ref


def require_logged_model_ref(context: MlflowContext, name: str) -> Ref:
    """The logged model of that id, or NotFound."""
    found_ref = (
        _get_tracking_service(context).placed(context.ctx.tenant, "output", name)
        if _LOGGED_MODEL_PATTERN.fullmatch(name)
        else None
    )
    return _require_found(found_ref, "logged model", name, "mlflow.search_logged_models() lists them")


def require_trace_ref(context: MlflowContext, name: str) -> Ref:
    """The trace of that id, or NotFound."""
    found_ref = (
        _get_tracking_service(context).placed(context.ctx.tenant, "trace", name)
        if _TRACE_PATTERN.fullmatch(name)
        else None
    )
    return _require_found(found_ref, "trace", name, "mlflow.search_traces() lists them")


def _require_found(ref: Ref | None, resource_label: str, name: str, hint: str) -> Ref:
    if ref is None:
        raise NotFound(f"there is no {resource_label} {name[:60]!r}", hint)
    return ref


def _require_default_experiment(context: MlflowContext) -> Ref:
    key = (context.ctx.tenant, "0")
    if key in context.places:
        return DEFAULT_EXPERIMENT
    if DEFAULT_EXPERIMENT not in _get_tracking_service(context).find_titled(context.ctx.tenant, "Default"):
        try:
            with suppress(Conflict):  # another request created it first
                context.call("track", "create", name=DEFAULT_EXPERIMENT)
        except FalajError as error:
            raise NotFound("there is no experiment '0' yet", "somebody who may write makes it by using it") from error
    context.found[key] = DEFAULT_EXPERIMENT
    return DEFAULT_EXPERIMENT


def _get_tracking_service(context: MlflowContext) -> Any:
    return context.house.desks["track"]
