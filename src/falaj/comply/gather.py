"""What the desks know that an auditor asks for: rows by file. What cannot be read is remembered, with why.

Nothing that changes by the mere passing of time goes in (ages, "overdue"): they are worked out against the end of the
period, so that the same platform gives the same rows tomorrow.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property, partial
from typing import Any

from falaj.comply import census
from falaj.comply.deployments import list_deployments, show_versions
from falaj.core.data import dataclass
from falaj.core.errand import Here
from falaj.core.errors import Denied, FalajError, Invalid, NotFound, Unavailable
from falaj.core.ref import Ref
from falaj.govern.applicability import controller_of, find_common_exemption
from falaj.store.codec import to_plain

Rows = list[dict[str, Any]]
Period = tuple[float, float]
PAGE = 1000
MISSING = (Denied, NotFound, Unavailable, Invalid, AttributeError)
PASSING = frozenset({"age_days", "overdue", "state_now", "standing", "tokens", "more"})
"""Fields that change though nobody did anything, and cursors."""
_KEYS = ("zone", "tenant", "meta", "secret", "log", "model", "name", "permit")
"""Purposes of keys but those of persons, which are as many as there are persons."""


@dataclass
class Ground:
    """The platform as it stands, read once; `missing` says what could not be read."""

    here: Here
    missing: dict[str, str] = field(default_factory=dict)
    period: Period | None = None
    """The time that rows of models and labels are about; without one they are about how things stand."""
    promoted: frozenset[str] = frozenset()
    """Names of models that the log of the period promoted, so that one whose versions are gone is not left out."""

    @cached_property
    def versions(self) -> list[Any]:
        """The newest version of everything in the catalog."""
        return list(_pages(lambda after: self.here.catalog.list(after=after, limit=PAGE), "versions"))

    @cached_property
    def production(self) -> list[Any]:
        """The models in production."""
        asked: Callable[[str], Any] = lambda after: self.here.catalog.list(  # noqa: E731
            kind="model", alias="production", after=after, limit=PAGE
        )
        return list(_pages(asked, "versions"))

    @cached_property
    def deployments(self) -> Rows:
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
        return show_versions(self.here, (row["ref"] for row in self.deployments))

    @cached_property
    def existing(self) -> list[Any]:
        """Every version that stands and was made by the end of the period, not only the newest of each name."""
        if self.period is None:
            return self.versions
        until = self.period[1]
        names = [str(version.ref.bare) for version in self.versions]
        pages = (_pages(partial(self._list_named, name), "versions") for name in names)
        return [version for page in pages for version in page if version.made_at <= until]

    def _list_named(self, name: str, after: str) -> Any:
        return self.here.catalog.list(name=name, after=after, limit=PAGE)

    @cached_property
    def requests(self) -> list[Any]:
        """What people asked for."""
        return list(_pages(lambda after: self.here.privacy.requests(after=after, limit=PAGE), "items"))

    def rows(self, name: str) -> Rows | None:
        """The rows of one file; None when they cannot be read."""
        try:
            return [plain(one) for one in SOURCES[name](self)]
        except MISSING as error:
            self.missing[name] = error.message if isinstance(error, FalajError) else "the platform has no such desk"
            return None


def plain(value: Any) -> dict[str, Any]:
    """A record as plain values, without what only the clock changes."""
    found: Any = to_plain(value)
    return {name: inner for name, inner in found.items() if name not in PASSING}


def _pages(ask: Callable[[str], Any], field_: str) -> Iterator[Any]:
    after = ""
    while True:
        page = ask(after)
        yield from getattr(page, field_)
        after = page.next
        if not after:
            return


def _every(ask: Callable[[str], Sequence[Any]]) -> Iterator[Any]:
    """All of a list, of which the last of each page knows where the next begins."""
    after = ""
    while page := ask(after):
        yield from page
        after = page[-1].more
        if not after:
            return


def _inventory(ground: Ground) -> Iterator[Mapping[str, Any]]:
    for version in ground.versions:
        yield {
            "ref": str(version.ref), "kind": version.ref.kind, "stage": version.stage, "owner": version.author,
            "zones": sorted(version.zones), "class": version.label.classification, "root": version.root,
            "made_at": version.made_at, "signed": version.signed,
        }  # fmt: skip
    for endpoint in _pages(lambda after: ground.here.serve.list(after=after, limit=PAGE), "endpoints"):
        models = sorted({str(getattr(each, "model", "")) for each in endpoint.revisions})
        yield {"ref": str(endpoint.ref), "kind": "endpoint", "models": models}


def _labels(ground: Ground) -> Iterator[Mapping[str, Any]]:
    """Yield the label of each version, and which of its regimes do not apply to it, with the reason."""
    regimes = {regime.id: regime for regime in ground.here.zones.regimes()}
    zones = {zone.id: zone for zone in ground.here.zones.list()}
    for version in ground.existing:
        label = version.label
        controllers = {controller_of(zones.get(name)) for name in version.zones}
        exempt = {
            name: exemption.because
            for name in sorted(label.regimes & regimes.keys())
            if (exemption := find_common_exemption(regimes[name], label, controllers)) is not None
        }
        yield {
            "ref": str(version.ref), "label": label.words, "regimes": sorted(label.regimes),
            "purposes": sorted(label.purposes), "not_applicable": exempt, "made_at": version.made_at,
        }  # fmt: skip


def _keys(ground: Ground) -> Iterator[Any]:
    for purpose in _KEYS:
        asked: Callable[[str], Any] = lambda after, purpose=purpose: ground.here.keys.list(  # type: ignore[misc]  # noqa: E731
            purpose=purpose, after=after, limit=PAGE
        )
        yield from _pages(asked, "keys")


def _boms(ground: Ground) -> Iterator[Mapping[str, Any]]:
    for version in ground.deployed:
        bom = json.loads(ground.here.catalog.provenance(version.ref, form="cyclonedx"))
        yield {"ref": str(version.ref), "bom": bom}


def _cards(ground: Ground) -> Iterator[Mapping[str, Any]]:
    for version in ground.deployed:
        card = plain(version.card) if version.card is not None else None
        yield {
            "ref": str(version.ref), "card": card, "signed": version.signed, "owner": version.author,
            "made_at": version.made_at, "purposes": sorted(version.label.purposes),
        }  # fmt: skip


def _gates(ground: Ground) -> Iterator[Any]:
    for project in sorted({version.ref.project for version in ground.versions if version.ref.kind == "model"}):
        yield from ground.here.catalog.rules(project)


def _attestations(ground: Ground) -> Iterator[Any]:
    for version in ground.deployed:
        yield from ground.here.catalog.evidence(version.ref)


def _certificates(ground: Ground) -> Iterator[Any]:
    for request in ground.requests:
        if request.type == "erasure" and request.answer.startswith("sha256:"):  # one that was refused has none
            yield ground.here.privacy.certificate(request.ref)


def _grants(ground: Ground) -> Iterator[Mapping[str, Any]]:
    for state in _every(lambda after: ground.here.zones.grants(after=after, limit=PAGE)):
        yield {"grant": plain(state.grant), "digest": state.digest, "approval": str(state.approval)}


def _approvals(ground: Ground) -> Iterator[Mapping[str, Any]]:
    for state in _every(lambda after: ground.here.approvals.list(after=after, limit=PAGE)):
        yield {"ref": str(Ref.parse(str(state.ref)).bare), **plain(state.approval)}


SOURCES: dict[str, Callable[[Ground], Iterator[Any]]] = {
    "inventory.jsonl": _inventory,
    "labels.jsonl": _labels,
    "zones.json": lambda ground: iter(ground.here.zones.list()),
    "regimes.json": lambda ground: iter(ground.here.zones.regimes()),
    "grants.jsonl": _grants,
    "census.json": lambda ground: iter((census.count(ground.here),)),
    "approvals.jsonl": _approvals,
    "timestamps.jsonl": lambda ground: iter(ground.here.audit.timestamps(limit=10_000)),
    "documents.jsonl": lambda ground: _every(lambda after: ground.here.approvals.documents(after=after, limit=PAGE)),
    "notices.jsonl": lambda ground: _every(lambda after: ground.here.approvals.notices(after=after, limit=PAGE)),
    "gates.jsonl": _gates,
    "people.jsonl": lambda ground: iter(ground.here.people.list()),
    "answers.jsonl": lambda ground: iter(ground.here.audit.answers()),
    "policy.json": lambda ground: iter((*ground.here.policy.roles(), *ground.here.policy.list())),
    "keys.jsonl": _keys,
    "queues.jsonl": lambda ground: iter(ground.here.queues.list()),
    "boms.jsonl": _boms,
    "cards.jsonl": _cards,
    "deployments.jsonl": lambda ground: iter(ground.deployments),
    "attestations.jsonl": _attestations,
    "watches.jsonl": lambda ground: (
        {"ref": str(one.ref)} for one in _every(lambda after: ground.here.monitor.list(after=after, limit=PAGE))
    ),
    "incidents.jsonl": lambda ground: _every(lambda after: ground.here.monitor.incidents(after=after, limit=PAGE)),
    "purposes.jsonl": lambda ground: iter(ground.here.privacy.purposes()),
    "consents.jsonl": lambda ground: _pages(
        lambda after: ground.here.privacy.consents(after=after, limit=PAGE), "items"
    ),
    "requests.jsonl": lambda ground: iter(ground.requests),
    "certificates.jsonl": _certificates,
    "breaches.jsonl": lambda ground: iter(ground.here.privacy.breaches()),
    "assessments.jsonl": lambda ground: iter(ground.here.privacy.assessments()),
}
"""File by file: what is read for it."""
