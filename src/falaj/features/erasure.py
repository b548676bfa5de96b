"""What an erasure reports, and which versions have to go. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from falaj.catalog.life_records import Kept
from falaj.core.data import dataclass
from falaj.core.ref import Ref


@dataclass(frozen=True, slots=True)
class Touched:
    """A model that learned from rows of the person, or may have."""

    ref: Ref
    sure: bool
    """False when it was made from the view, and nobody can tell whether from these rows."""
    through: tuple[Ref, ...]
    """The training sets that held the person."""
    do: str


@dataclass(frozen=True, slots=True)
class Erasure:
    """What became of a person, or would."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("entity", "mark", "views", "removed", "made", "kept", "models")

    entity: Ref
    mark: str
    """The person's pseudonym: the log and the tombstones know them by it."""
    dry: bool
    views: tuple[Ref, ...]
    """Barred from: online and tail are empty of them, and later rows are kept apart."""
    removed: tuple[Ref, ...]
    """Versions that held the person or their key, or shared stored bytes with one that did."""
    made: tuple[Ref, ...]
    """Versions that stand in their place."""
    kept: tuple[Kept, ...]
    models: tuple[Touched, ...]
    notes: tuple[str, ...] = ()
    hidden: int = 0
    """So many views, sets and models at least are about the entity that you may not see: have others erase, too."""

    @property
    def ok(self) -> bool:
        """True when nothing was left that holds the person, or may."""
        return not self.kept and not self.hidden


@dataclass(frozen=True, slots=True)
class Seen:
    """A version as an erasure looks at it."""

    ref: Ref
    batches: frozenset[str]
    """What its bytes lie in; they live, and can be asked for, as long as any version that names one of them."""
    holds: bool
    files: frozenset[str] = frozenset()
    theirs: frozenset[str] | None = None
    """In which of the batches the person is; in any, where nobody knows."""


def spread(seen: Iterable[Seen], known: Iterable[Ref] = ()) -> set[Ref]:
    """Those that hold the person (or are known to), and those whose bytes lie in the same batches as theirs."""
    left, given = list(seen), set(known)
    found = {one.ref for one in left if one.holds or one.ref in given}
    while True:
        known_bad = (one.batches if one.theirs is None else one.theirs for one in left if one.ref in found)
        bad: frozenset[str] = frozenset().union(*known_bad)
        more = {one.ref for one in left if one.ref not in found and one.batches & bad}
        if not more:
            return found
        found |= more


def spread_rows(seen: Mapping[str, Sequence[Seen]], chapters: Sequence[Mapping[str, Ref]]) -> set[Ref]:
    """Every version of rows that has to go, of all faces: chapters go whole.

    Only the first face says whom rows are about. Of versions that no chapter names (published by somebody who was
    killed, or replaced already) those of the other faces are known by the names of their files.
    """
    used = {ref for faces in chapters for ref in faces.values()}
    loose = {one.files for one in seen.get("", ()) if one.holds and one.ref not in used}
    bad = {one.ref for face in seen if face for one in seen[face] if one.ref not in used and one.files in loose}
    while True:
        more = set().union(*(spread(versions, bad) for versions in seen.values()))
        more |= {ref for faces in chapters if not more.isdisjoint(faces.values()) for ref in faces.values()}
        if more == bad:
            return bad
        bad = more
