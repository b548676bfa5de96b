"""Ref: the one way to name a thing, `kind:project/name@version`."""

import re
from functools import lru_cache, total_ordering

from falaj.core.errors import Invalid

_KIND_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,31}")
_PROJECT_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PINNED_VERSION_PATTERN = re.compile(r"[vr][1-9][0-9]{0,17}")
_ALIAS_PATTERN = re.compile(r"[a-z][a-z0-9._-]{0,62}")
_FORMAT_HINT = "write kind:project/name or kind:project/name@version, for example dataset:fraud/transactions@v3"


@total_ordering
class Ref:
    """A name. `@v3` is an immutable version and `@r3` a revision of a mutable record: both pinned. All else floats.

    A plain class and not a dataclass, so that codecs write it as its text and not as an object of four fields.
    """

    __slots__ = ("_text", "kind", "name", "project", "version")

    def __init__(self, kind: str, project: str, name: str, version: str = "") -> None:
        for part, pattern, value in (
            ("kind", _KIND_PATTERN, kind),
            ("project", _PROJECT_PATTERN, project),
            ("name", _NAME_PATTERN, name),
        ):
            if not pattern.fullmatch(value):
                raise Invalid(f"{value[:80]!r} is not a {part} of a reference", _FORMAT_HINT)
        if version and not (_PINNED_VERSION_PATTERN.fullmatch(version) or _ALIAS_PATTERN.fullmatch(version)):
            raise Invalid(f"{version[:80]!r} is not a version", _FORMAT_HINT)
        set_attribute = object.__setattr__
        set_attribute(self, "kind", kind)
        set_attribute(self, "project", project)
        set_attribute(self, "name", name)
        set_attribute(self, "version", version)
        set_attribute(self, "_text", f"{kind}:{project}/{name}@{version}" if version else f"{kind}:{project}/{name}")

    kind: str
    project: str
    name: str
    version: str
    _text: str

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a reference does not change")

    def __reduce__(self) -> tuple[object, ...]:
        return (Ref, (self.kind, self.project, self.name, self.version))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and self._text == other._text

    def __lt__(self, other: "Ref") -> bool:
        return self._text < other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return f"Ref({self._text!r})"

    @property
    def pinned(self) -> bool:
        """True when this names the same bytes for ever."""
        return _PINNED_VERSION_PATTERN.fullmatch(self.version) is not None

    def at(self, version: str) -> "Ref":
        """The same thing at another version."""
        return Ref(self.kind, self.project, self.name, version)

    @property
    def bare(self) -> "Ref":
        """The same thing without a version."""
        return self if not self.version else Ref.known(self.kind, self.project, self.name, "")

    def __str__(self) -> str:
        return self._text

    @staticmethod
    def known(kind: str, project: str, name: str, version: str) -> "Ref":
        """A reference whose parts have been a reference before, as those of a record have: nothing is checked again."""
        ref = object.__new__(Ref)
        set_attribute = object.__setattr__
        set_attribute(ref, "kind", kind)
        set_attribute(ref, "project", project)
        set_attribute(ref, "name", name)
        set_attribute(ref, "version", version)
        set_attribute(ref, "_text", f"{kind}:{project}/{name}@{version}" if version else f"{kind}:{project}/{name}")
        return ref

    @staticmethod
    def parse(text: "str | Ref") -> "Ref":
        """Read a reference as people write it."""
        return text if isinstance(text, Ref) else _parse_ref(text)


@lru_cache(maxsize=4096)
def _parse_ref(text: str) -> Ref:
    name_part, at_sign, version = text.partition("@")
    kind, colon, project_and_name = name_part.partition(":")
    project, slash, name = project_and_name.partition("/")
    if not colon or not slash or (at_sign and not version):
        raise Invalid(f"{text[:200]!r} is not a reference", _FORMAT_HINT)
    return Ref(kind, project, name, version)
