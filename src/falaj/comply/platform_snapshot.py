"""What the desks know that an auditor asks for: rows by file. What cannot be read is remembered, with why.

Nothing that changes by the mere passing of time goes in (ages, "overdue"): they are worked out against the end of the
period, so that the same platform gives the same rows tomorrow.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property, partial
from typing import Any

from falaj.comply import copy_census
from falaj.comply.deployments import list_deployments, list_live_versions
from falaj.core.client_command import Client
from falaj.core.data import dataclass
from falaj.core.errors import Denied, FalajError, Invalid, NotFound, Unavailable
from falaj.core.ref import Ref
from falaj.govern.applicability import find_common_exemption, find_controller_jurisdiction
from falaj.store.codec import to_plain

RowList = list[dict[str, Any]]
TimeRange = tuple[float, float]
PAGE_SIZE = 1000
READ_ERRORS = (Denied, NotFound, Unavailable, Invalid, AttributeError)
VOLATILE_FIELDS = frozenset({"age_days", "overdue", "state_now", "standing", "tokens", "more"})
"""Fields that change though nobody did anything, and cursors."""
_KEY_PURPOSES = ("zone", "tenant", "meta", "secret", "log", "model", "name", "permit")
"""Purposes of keys but those of persons, which are as many as there are persons."""


@dataclass
class PlatformSnapshot:
    """The platform as it stands, read once; `missing` says what could not be read."""

    here: Client
    missing: dict[str, str] = field(default_factory=dict)
    period: TimeRange | None = None
    """The time that rows of models and labels are about; without one they are about how things stand."""
    promoted: frozenset[str] = frozenset()
    """Names of models that the log of the period promoted, so that one whose versions are gone is not left out."""

    @cached_property
    def versions(self) -> list[Any]:
        """The newest version of everything in the catalog."""
        return list(_iterate_pages(lambda after: self.here.catalog.list(after=after, limit=PAGE_SIZE), "versions"))

    @cached_property
    def production(self) -> list[Any]:
        """The models in production."""
        list_page: Callable[[str], Any] = lambda after: self.here.catalog.list(  # noqa: E731
            kind="model", alias="production", after=after, limit=PAGE_SIZE
        )
        return list(_iterate_pages(list_page, "versions"))

    @cached_property
    def deployments(self) -> RowList:
        """The times in which a model version was in production: those of the period, else the ones that last."""
        if self.period is None:
            return [{"ref": str(version.ref), "since": version.made_at, "until": 0.0} for version in self.production]
        models = {str(version.ref.bare) for version in self.versions if version.ref.kind == "model"}
        return list_deployments(self.here, models | self.promoted, *self.period)

    @cached_property
    def deployed(self) -> list[Any]:
        """The model versions behind `deployments`, but those that were deleted."""
        if self.period is None:
            return self.production
        return list_live_versions(self.here, (row["ref"] for row in self.deployments))

    @cached_property
    def existing(self) -> list[Any]:
        """Every version that stands and was made by the end of the period, not only the newest of each name."""
        if self.period is None:
            return self.versions
        until = self.period[1]
        names = [str(version.ref.bare) for version in self.versions]
        pages = (_iterate_pages(partial(self._list_named, name), "versions") for name in names)
        return [version for page in pages for version in page if version.made_at <= until]

    def _list_named(self, name: str, after: str) -> Any:
        return self.here.catalog.list(name=name, after=after, limit=PAGE_SIZE)

    @cached_property
    def requests(self) -> list[Any]:
        """What people asked for."""
        return list(_iterate_pages(lambda after: self.here.privacy.requests(after=after, limit=PAGE_SIZE), "items"))

    def rows(self, name: str) -> RowList | None:
        """The rows of one file; None when they cannot be read."""
        try:
            return [to_plain_row(listed_item) for listed_item in READERS_BY_FILE[name](self)]
        except READ_ERRORS as error:
            self.missing[name] = error.message if isinstance(error, FalajError) else "the platform has no such desk"
            return None


def to_plain_row(value: Any) -> dict[str, Any]:
    """A record as plain values, without what only the clock changes."""
    plain_fields: Any = to_plain(value)
    return {name: field_value for name, field_value in plain_fields.items() if name not in VOLATILE_FIELDS}


def _iterate_pages(list_page: Callable[[str], Any], field_: str) -> Iterator[Any]:
    after = ""
    while True:
        page = list_page(after)
        yield from getattr(page, field_)
        after = page.next
        if not after:
            return


def _iterate_list(list_page: Callable[[str], Sequence[Any]]) -> Iterator[Any]:
    """All of a list, of which the last of each page knows where the next begins."""
    after = ""
    while page := list_page(after):
        yield from page
        after = page[-1].more
        if not after:
            return


def _read_inventory(snapshot: PlatformSnapshot) -> Iterator[Mapping[str, Any]]:
    for version in snapshot.versions:
        yield {
            "ref": str(version.ref), "kind": version.ref.kind, "stage": version.stage, "owner": version.author,
            "zones": sorted(version.zones), "class": version.label.classification, "root": version.root,
            "made_at": version.made_at, "signed": version.signed,
        }  # fmt: skip
    for endpoint in _iterate_pages(lambda after: snapshot.here.serve.list(after=after, limit=PAGE_SIZE), "endpoints"):
        models = sorted({str(getattr(endpoint_revision, "model", "")) for endpoint_revision in endpoint.revisions})
        yield {"ref": str(endpoint.ref), "kind": "endpoint", "models": models}


def _read_labels(snapshot: PlatformSnapshot) -> Iterator[Mapping[str, Any]]:
    """Yield the label of each version, and which of its regimes do not apply to it, with the reason."""
    regimes = {regime.id: regime for regime in snapshot.here.zones.regimes()}
    zones = {zone.id: zone for zone in snapshot.here.zones.list()}
    for version in snapshot.existing:
        label = version.label
        controllers = {find_controller_jurisdiction(zones.get(name)) for name in version.zones}
        exempt_reasons = {
            name: exemption.because
            for name in sorted(label.regimes & regimes.keys())
            if (exemption := find_common_exemption(regimes[name], label, controllers)) is not None
        }
        yield {
            "ref": str(version.ref), "label": label.words, "regimes": sorted(label.regimes),
            "purposes": sorted(label.purposes), "not_applicable": exempt_reasons, "made_at": version.made_at,
        }  # fmt: skip


def _read_keys(snapshot: PlatformSnapshot) -> Iterator[Any]:
    for purpose in _KEY_PURPOSES:
        list_page: Callable[[str], Any] = lambda after, purpose=purpose: snapshot.here.keys.list(  # type: ignore[misc]  # noqa: E731
            purpose=purpose, after=after, limit=PAGE_SIZE
        )
        yield from _iterate_pages(list_page, "keys")


def _read_boms(snapshot: PlatformSnapshot) -> Iterator[Mapping[str, Any]]:
    for version in snapshot.deployed:
        bom = json.loads(snapshot.here.catalog.provenance(version.ref, form="cyclonedx"))
        yield {"ref": str(version.ref), "bom": bom}


def _read_cards(snapshot: PlatformSnapshot) -> Iterator[Mapping[str, Any]]:
    for version in snapshot.deployed:
        card = to_plain_row(version.card) if version.card is not None else None
        yield {
            "ref": str(version.ref), "card": card, "signed": version.signed, "owner": version.author,
            "made_at": version.made_at, "purposes": sorted(version.label.purposes),
        }  # fmt: skip


def _read_gates(snapshot: PlatformSnapshot) -> Iterator[Any]:
    for project in sorted({version.ref.project for version in snapshot.versions if version.ref.kind == "model"}):
        yield from snapshot.here.catalog.rules(project)


def _read_attestations(snapshot: PlatformSnapshot) -> Iterator[Any]:
    for version in snapshot.deployed:
        yield from snapshot.here.catalog.evidence(version.ref)


def _read_certificates(snapshot: PlatformSnapshot) -> Iterator[Any]:
    for request in snapshot.requests:
        if request.type == "erasure" and request.answer.startswith("sha256:"):  # one that was refused has none
            yield snapshot.here.privacy.certificate(request.ref)


def _read_grants(snapshot: PlatformSnapshot) -> Iterator[Mapping[str, Any]]:
    for state in _iterate_list(lambda after: snapshot.here.zones.grants(after=after, limit=PAGE_SIZE)):
        yield {"grant": to_plain_row(state.grant), "digest": state.digest, "approval": str(state.approval)}


def _read_approvals(snapshot: PlatformSnapshot) -> Iterator[Mapping[str, Any]]:
    for state in _iterate_list(lambda after: snapshot.here.approvals.list(after=after, limit=PAGE_SIZE)):
        yield {"ref": str(Ref.parse(str(state.ref)).bare), **to_plain_row(state.approval)}


READERS_BY_FILE: dict[str, Callable[[PlatformSnapshot], Iterator[Any]]] = {
    "inventory.jsonl": _read_inventory,
    "labels.jsonl": _read_labels,
    "zones.json": lambda snapshot: iter(snapshot.here.zones.list()),
    "regimes.json": lambda snapshot: iter(snapshot.here.zones.regimes()),
    "grants.jsonl": _read_grants,
    "census.json": lambda snapshot: iter((copy_census.count_copies(snapshot.here),)),
    "approvals.jsonl": _read_approvals,
    "timestamps.jsonl": lambda snapshot: iter(snapshot.here.audit.timestamps(limit=10_000)),
    "documents.jsonl": lambda snapshot: _iterate_list(
        lambda after: snapshot.here.approvals.documents(after=after, limit=PAGE_SIZE)
    ),
    "notices.jsonl": lambda snapshot: _iterate_list(
        lambda after: snapshot.here.approvals.notices(after=after, limit=PAGE_SIZE)
    ),
    "gates.jsonl": _read_gates,
    "people.jsonl": lambda snapshot: iter(snapshot.here.people.list()),
    "answers.jsonl": lambda snapshot: iter(snapshot.here.audit.answers()),
    "policy.json": lambda snapshot: iter((*snapshot.here.policy.roles(), *snapshot.here.policy.list())),
    "keys.jsonl": _read_keys,
    "queues.jsonl": lambda snapshot: iter(snapshot.here.queues.list()),
    "boms.jsonl": _read_boms,
    "cards.jsonl": _read_cards,
    "deployments.jsonl": lambda snapshot: iter(snapshot.deployments),
    "attestations.jsonl": _read_attestations,
    "watches.jsonl": lambda snapshot: (
        {"ref": str(watch_item.ref)}
        for watch_item in _iterate_list(lambda after: snapshot.here.monitor.list(after=after, limit=PAGE_SIZE))
    ),
    "incidents.jsonl": lambda snapshot: _iterate_list(
        lambda after: snapshot.here.monitor.incidents(after=after, limit=PAGE_SIZE)
    ),
    "purposes.jsonl": lambda snapshot: iter(snapshot.here.privacy.purposes()),
    "consents.jsonl": lambda snapshot: _iterate_pages(
        lambda after: snapshot.here.privacy.consents(after=after, limit=PAGE_SIZE), "items"
    ),
    "requests.jsonl": lambda snapshot: iter(snapshot.requests),
    "certificates.jsonl": _read_certificates,
    "breaches.jsonl": lambda snapshot: iter(snapshot.here.privacy.breaches()),
    "assessments.jsonl": lambda snapshot: iter(snapshot.here.privacy.assessments()),
}
"""File by file: what is read for it."""
