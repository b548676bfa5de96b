"""Cell: everything about a thing that policy may look at. Things in one cell always get one answer.

A record carries its cell as an indexed column. A list is filtered by asking policy about each distinct cell and putting
the allowed ones into the query, so a list never shows more than a direct question would.
"""

import json
from functools import lru_cache

from falaj.core.data import dataclass
from falaj.core.label import Label


@dataclass(frozen=True, slots=True)
class PolicyScope:
    """The facts of a thing that a policy may name."""

    kind: str
    project: str
    zone: str
    classification: int = 0
    regimes: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    restricted: bool = False

    @property
    def limited(self) -> bool:
        """True when a label or a restriction limits who may read the values of what is in it."""
        return bool(self.classification or self.regimes or self.restricted)

    def encode(self) -> str:
        """One text, equal exactly when the cells are equal."""
        return _encode_scope(self)

    @staticmethod
    def decode(text: str) -> "PolicyScope":
        """The cell whose `encode` gave this text."""
        return _decode_scope(text)

    @staticmethod
    def of(kind: str, project: str, zone: str, label: Label, restricted: bool = False) -> "PolicyScope":
        """The cell of a thing with this label standing in this zone."""
        return PolicyScope(
            kind,
            project,
            zone,
            label.classification,
            tuple(sorted(label.regimes)),
            tuple(sorted(label.categories)),
            restricted,
        )


@lru_cache(maxsize=1024)
def filter_limited_scopes(encoded_scopes: frozenset[str]) -> frozenset[str]:
    """Those of the encoded cells whose label, or restriction, limits who may read the values in them."""
    return frozenset(text for text in encoded_scopes if _decode_scope(text).limited)


@lru_cache(maxsize=8192)
def _encode_scope(scope: PolicyScope) -> str:
    parts = [
        scope.kind,
        scope.project,
        scope.zone,
        scope.classification,
        scope.regimes,
        scope.categories,
        int(scope.restricted),
    ]
    return json.dumps(parts, separators=(",", ":"))


@lru_cache(maxsize=8192)
def _decode_scope(text: str) -> PolicyScope:
    kind, project, zone, classification, regimes, categories, restricted = json.loads(text)
    return PolicyScope(kind, project, zone, classification, tuple(regimes), tuple(categories), bool(restricted))
