"""A folder that was published before, looked at again: whether it is as it was is known without asking the platform."""

import sqlite3
from pathlib import Path
from typing import NamedTuple

from falaj.snapshot.lists import Lists
from falaj.snapshot.page_reuse import ReusePlan, compare_stamps
from falaj.snapshot.publish_state import PublishState


class FolderCheck(NamedTuple):
    """What a look at a folder found; the root of the tree that it still is, or nothing."""

    plan: ReusePlan
    root: str = ""
    num_files: int = 0
    size_bytes: int = 0


def check_published_folder(folder: Path, state_path: Path) -> FolderCheck | None:
    """Look at a folder beside what a publish of it remembers; None where that is nothing, or does not read well."""
    try:
        with PublishState(state_path) as publish_state:
            root, sizes = publish_state.recall("root").decode(), publish_state.recall("sizes").split()
            if not root:
                return None
            plan = compare_with_state(folder, publish_state)
            if not sizes or not plan.fingerprint or plan.fingerprint != publish_state.recall("fingerprint"):
                return FolderCheck(plan)
            return FolderCheck(plan, root, int(sizes[0]), int(sizes[1]))
    except (sqlite3.Error, ValueError):  # who publishes finds that, too, and begins anew
        return None


def compare_with_state(folder: Path, state: PublishState) -> ReusePlan:
    """Compare a folder with the pages that are known of it."""
    with Lists(state) as lists:
        return compare_stamps(folder, state.pages(), lists.of)
