"""A folder that was published before, looked at again: whether it is as it was is known without asking the platform."""

import sqlite3
from pathlib import Path
from typing import NamedTuple

from falaj.snapshot.lists import Lists
from falaj.snapshot.state import State
from falaj.snapshot.whole import Plan, look


class Again(NamedTuple):
    """What a look at a folder found; the root of the tree that it still is, or nothing."""

    plan: Plan
    root: str = ""
    num_files: int = 0
    size_bytes: int = 0


def look_again(folder: Path, state: Path) -> Again | None:
    """Look at a folder beside what a publish of it remembers; None where that is nothing, or does not read well."""
    try:
        with State(state) as kept:
            root, sizes = kept.recall("root").decode(), kept.recall("sizes").split()
            if not root:
                return None
            plan = look_at(folder, kept)
            if not sizes or not plan.fingerprint or plan.fingerprint != kept.recall("fingerprint"):
                return Again(plan)
            return Again(plan, root, int(sizes[0]), int(sizes[1]))
    except (sqlite3.Error, ValueError):  # who publishes finds that, too, and begins anew
        return None


def look_at(folder: Path, kept: State) -> Plan:
    """Compare a folder with the pages that are known of it."""
    with Lists(kept) as lists:
        return look(folder, kept.pages(), lists.of)
