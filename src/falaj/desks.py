"""The list of desks: the words a user says after `falaj`, and where their verbs are; imported when asked for."""

from functools import cache
from importlib import import_module
from typing import NamedTuple


class Desk(NamedTuple):
    """Where a desk's class is, what it is for, and the kinds of things whose `show` it answers."""

    path: str
    summary: str
    kinds: tuple[str, ...] = ()
    errands: tuple[str, ...] = ()
    """Modules of what runs beside the caller (core/errand.py) and belongs to this desk."""


DESKS: dict[str, Desk] = {
    "catalog": Desk(
        "falaj.catalog.service:Catalog",
        "Versions of datasets, models and code: publish, compare, promote, roll back",
        ("dataset", "model", "code"),
        ("falaj.catalog.errands", "falaj.catalog.retrace", "falaj.exchange.errands"),
    ),
    "track": Desk(
        "falaj.track.service:Track",
        "Experiments: runs, parameters, metrics, artefacts; MLflow clients welcome",
        ("run",),
        ("falaj.track.errands",),
    ),
    "outputs": Desk("falaj.track.outputs:Outputs", "Models that runs logged, before they are registered", ("output",)),
    "traces": Desk(
        "falaj.track.traces:Traces", "What programs did, call by call, with what people think of it", ("trace",)
    ),
    "store": Desk(
        "falaj.store.service:Storage", "Bytes under labels: put, get, copy between zones, check, back up", ("blob",)
    ),
    "people": Desk(
        "falaj.govern.people:People", "Tenants, people, service accounts, their roles and tokens", ("person",)
    ),
    "policy": Desk(
        "falaj.govern.policy_desk:Policy", "Who may do what: roles, tenant rules, and why a decision fell", ("policy",)
    ),
    "zones": Desk(
        "falaj.govern.zones:Zones",
        "Legal places, regimes, transfer grants: what may lie or go where",
        ("zone",),
    ),
    "approvals": Desk(
        "falaj.govern.approvals:Approvals", "Four eyes: ask, give, refuse, over exact digests", ("approval",)
    ),
    "keys": Desk("falaj.govern.rotate:Keys", "The key hierarchy: ages, versions, rotation", ("key",)),
    "secrets": Desk("falaj.govern.secrets:SecretShelf", "Secrets by reference, never by value", ("secret",)),
    "audit": Desk(
        "falaj.audit.service:Audit", "What can be proved: the log, proofs, evidence packs, lineage", ("event",)
    ),
}


@cache
def desk_class(name: str) -> type:
    """The class behind a desk's name; imports that desk and no other."""
    if name not in DESKS:
        from falaj.core.errors import NotFound  # the list itself must load nothing: `falaj --help` is made of it

        raise NotFound(f"there is no desk {name!r:.40}", f"there are: {', '.join(DESKS)}")
    module, _, cls = DESKS[name].path.partition(":")
    found: type = getattr(import_module(module), cls)
    return found
