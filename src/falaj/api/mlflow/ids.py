"""Ids: what MLflow's clients call things by, as references. Knowing one is no permission: the guard asks on."""

import re
from contextlib import suppress
from typing import Any

from falaj.api.mlflow.coding import Visit
from falaj.core.errors import Conflict, FalajError, NotFound
from falaj.core.ref import Ref
from falaj.track.records import DEFAULT

_RUN = re.compile(r"[0-9a-f]{32}")
_OUTPUT = re.compile(r"m-[0-9a-f]{32}")
_TRACE = re.compile(r"tr-[0-9a-f]{32}")


def experiment_ref(visit: Visit, number: str) -> Ref:
    """The experiment of that number, or NotFound. Number 0 is there from the start: its first user makes it."""
    if number == "0":
        return _default(visit)
    key = (visit.ctx.tenant, number)
    ref = visit.places.get(key)
    if ref is None:
        found = _desk(visit).experiment_ref(*key) if number.isascii() and number.isdecimal() else None
        ref = visit.found[key] = _found(found, "experiment", number, "mlflow.search_experiments() lists them")
    return ref


def run_ref(visit: Visit, name: str) -> Ref:
    """The run of that id, or NotFound."""
    key = (visit.ctx.tenant, name)
    ref = visit.places.get(key)
    if ref is None:
        found = _desk(visit).run_ref(*key) if _RUN.fullmatch(name) else None
        ref = visit.found[key] = _found(found, "run", name, "mlflow.search_runs() lists them")
    return ref


def output_ref(visit: Visit, name: str) -> Ref:
    """The logged model of that id, or NotFound."""
    found = _desk(visit).placed(visit.ctx.tenant, "output", name) if _OUTPUT.fullmatch(name) else None
    return _found(found, "logged model", name, "mlflow.search_logged_models() lists them")


def trace_ref(visit: Visit, name: str) -> Ref:
    """The trace of that id, or NotFound."""
    found = _desk(visit).placed(visit.ctx.tenant, "trace", name) if _TRACE.fullmatch(name) else None
    return _found(found, "trace", name, "mlflow.search_traces() lists them")


def _found(ref: Ref | None, what: str, name: str, hint: str) -> Ref:
    if ref is None:
        raise NotFound(f"there is no {what} {name[:60]!r}", hint)
    return ref


def _default(visit: Visit) -> Ref:
    key = (visit.ctx.tenant, "0")
    if key in visit.places:
        return DEFAULT
    if DEFAULT not in _desk(visit).find_titled(visit.ctx.tenant, "Default"):
        try:
            with suppress(Conflict):  # another request created it first
                visit.call("track", "create", name=DEFAULT)
        except FalajError as error:
            raise NotFound("there is no experiment '0' yet", "somebody who may write makes it by using it") from error
    visit.found[key] = DEFAULT
    return DEFAULT


def _desk(visit: Visit) -> Any:
    return visit.house.desks["track"]
