"""What an erasure reports, and which versions have to go. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from falaj.catalog.lifecycle_records import KeptVersion
from falaj.core.data import dataclass
from falaj.core.ref import Ref


@dataclass(frozen=True, slots=True)
class TouchedModel:
    """A model that learned from rows of the person, or may have."""

    ref: Ref
    sure: bool
    """False when it was made from the view, and nobody can tell whether from these rows."""
    through: tuple[Ref, ...]
    """The training sets that held the person."""
    do: str


@dataclass(frozen=True, slots=True)
class ErasureReport:
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
    kept: tuple[KeptVersion, ...]
    models: tuple[TouchedModel, ...]
    notes: tuple[str, ...] = ()
    hidden: int = 0
    """So many views, sets and models at least are about the entity that you may not see: have others erase, too."""

    @property
    def ok(self) -> bool:
        """True when nothing was left that holds the person, or may."""
        return not self.kept and not self.hidden


@dataclass(frozen=True, slots=True)
class VersionState:
    """A version as an erasure looks at it."""

    ref: Ref
    batches: frozenset[str]
    """What its bytes lie in; they live, and can be asked for, as long as any version that names one of them."""
    holds: bool
    files: frozenset[str] = frozenset()
    theirs: frozenset[str] | None = None
    """In which of the batches the person is; in any, where nobody knows."""


def find_versions_to_remove(states: Iterable[VersionState], known_refs: Iterable[Ref] = ()) -> set[Ref]:
    """Those that hold the person (or are known to), and those whose bytes lie in the same batches as theirs."""
    remaining, given_refs = list(states), set(known_refs)
    to_remove = {state.ref for state in remaining if state.holds or state.ref in given_refs}
    while True:
        batch_groups = (
            state.batches if state.theirs is None else state.theirs for state in remaining if state.ref in to_remove
        )
        tainted_batches: frozenset[str] = frozenset().union(*batch_groups)
        added = {state.ref for state in remaining if state.ref not in to_remove and state.batches & tainted_batches}
        if not added:
            return to_remove
        to_remove |= added


def find_row_versions_to_remove(
    states_by_group: Mapping[str, Sequence[VersionState]], segments: Sequence[Mapping[str, Ref]]
) -> set[Ref]:
    """Every version of rows that has to go, of all faces: chapters go whole.

    Only the first face says whom rows are about. Of versions that no chapter names (published by somebody who was
    killed, or replaced already) those of the other faces are known by the names of their files.
    """
    used_versions = {ref for groups in segments for ref in groups.values()}
    unlisted_files = {
        state.files for state in states_by_group.get("", ()) if state.holds and state.ref not in used_versions
    }
    to_remove = {
        state.ref
        for group in states_by_group
        if group
        for state in states_by_group[group]
        if state.ref not in used_versions and state.files in unlisted_files
    }
    while True:
        expanded = set().union(*(find_versions_to_remove(versions, to_remove) for versions in states_by_group.values()))
        expanded |= {ref for groups in segments if not expanded.isdisjoint(groups.values()) for ref in groups.values()}
        if expanded == to_remove:
            return to_remove
        to_remove = expanded
