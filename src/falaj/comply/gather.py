"""What the desks know that an auditor asks for: rows by file. What cannot be read is remembered, with why.

Nothing that changes by the mere passing of time goes in (ages, "overdue"): they are worked out against the end of the
period, so that the same platform gives the same rows tomorrow.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

from falaj.comply import census
from falaj.core.data import dataclass
from falaj.core.errand import Here
from falaj.core.errors import Denied, FalajError, Invalid, NotFound, Unavailable
from falaj.core.ref import Ref
from falaj.store.codec import to_plain

Rows = list[dict[str, Any]]
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
    for version in ground.versions:
        yield {"ref": str(version.ref), "label": version.label.words, "regimes": sorted(version.label.regimes)}


def _keys(ground: Ground) -> Iterator[Any]:
    for purpose in _KEYS:
        asked: Callable[[str], Any] = lambda after, purpose=purpose: ground.here.keys.list(  # type: ignore[misc]  # noqa: E731
            purpose=purpose, after=after, limit=PAGE
        )
        yield from _pages(asked, "keys")


def _boms(ground: Ground) -> Iterator[Mapping[str, Any]]:
    for version in ground.production:
        bom = json.loads(ground.here.catalog.provenance(version.ref, form="cyclonedx"))
        yield {"ref": str(version.ref), "bom": bom}


def _cards(ground: Ground) -> Iterator[Mapping[str, Any]]:
    for one in ground.production:
        card = plain(one.card) if one.card is not None else None
        yield {"ref": str(one.ref), "card": card, "signed": one.signed, "owner": one.author, "made_at": one.made_at}


def _gates(ground: Ground) -> Iterator[Any]:
    for project in sorted({version.ref.project for version in ground.versions if version.ref.kind == "model"}):
        yield from ground.here.catalog.rules(project)


def _attestations(ground: Ground) -> Iterator[Any]:
    for version in ground.production:
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
    "gates.jsonl": _gates,
    "people.jsonl": lambda ground: iter(ground.here.people.list()),
    "answers.jsonl": lambda ground: iter(ground.here.audit.answers()),
    "policy.json": lambda ground: iter((*ground.here.policy.roles(), *ground.here.policy.list())),
    "keys.jsonl": _keys,
    "queues.jsonl": lambda ground: iter(ground.here.queues.list()),
    "boms.jsonl": _boms,
    "cards.jsonl": _cards,
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
