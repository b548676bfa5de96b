"""Ref: the one way to name a thing, `kind:project/name@version`."""

import re
from dataclasses import dataclass
from functools import lru_cache

from falaj.core.errors import Invalid

_KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")
_PROJECT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PINNED = re.compile(r"[vr][1-9][0-9]{0,17}")
_ALIAS = re.compile(r"[a-z][a-z0-9._-]{0,62}")
_HINT = "write kind:project/name or kind:project/name@version, for example dataset:fraud/transactions@v3"


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """A name. `@v3` is an immutable version and `@r3` a revision of a mutable record: both pinned. All else floats."""

    kind: str
    project: str
    name: str
    version: str = ""

    def __post_init__(self) -> None:
        for part, rule, value in (("kind", _KIND, self.kind), ("project", _PROJECT, self.project), ("name", _NAME, self.name)):
            if not rule.fullmatch(value):
                raise Invalid(f"{value[:80]!r} is not a {part} of a reference", _HINT)
        if self.version and not (_PINNED.fullmatch(self.version) or _ALIAS.fullmatch(self.version)):
            raise Invalid(f"{self.version[:80]!r} is not a version", _HINT)

    @property
    def pinned(self) -> bool:
        """True when this names the same bytes for ever."""
        return _PINNED.fullmatch(self.version) is not None

    def at(self, version: str) -> "Ref":
        """The same thing at another version."""
        return Ref(self.kind, self.project, self.name, version)

    @property
    def bare(self) -> "Ref":
        """The same thing without a version."""
        return self if not self.version else Ref(self.kind, self.project, self.name)

    def __str__(self) -> str:
        tail = f"@{self.version}" if self.version else ""
        return f"{self.kind}:{self.project}/{self.name}{tail}"

    @staticmethod
    def parse(text: "str | Ref") -> "Ref":
        """Read a reference as people write it."""
        return text if isinstance(text, Ref) else _parse(text)


@lru_cache(maxsize=4096)
def _parse(text: str) -> Ref:
    head, at, version = text.partition("@")
    kind, colon, rest = head.partition(":")
    project, slash, name = rest.partition("/")
    if not colon or not slash or (at and not version):
        raise Invalid(f"{text[:200]!r} is not a reference", _HINT)
    return Ref(kind, project, name, version)
