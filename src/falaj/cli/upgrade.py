"""`falaj upgrade check`: whether this program may join those that run, and what it would do to their store."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from falaj.cli.frame import Frame
from falaj.cli.parsing import Parser, read
from falaj.cli.tables import put_findings
from falaj.core.errors import FalajError, NotFound
from falaj.core.finding import Finding
from falaj.core.ports import CanJoin, Standing
from falaj.core.release import VERSION
from falaj.core.replica import Replica

GOOD, LOOK, MISS = "ok", "look", "MISS"
ROWS_PER_S = 250_000
"""How fast an index is made, at the least; others write meanwhile."""
PAGE = 1000


def upgrade(frame: Frame, arguments: list[str]) -> int:
    """Look at the store of a folder's settings, and change nothing."""
    parser = Parser(
        prog="falaj upgrade",
        description="Say whether this program may join those that run on the store, which steps it would take there, "
        "and how old the newest backup is. Nothing is changed. Exit code 1 when it may not, or should not.",
        epilog="Example: falaj upgrade check --at /var/lib/falaj && systemctl restart falaj",
    )
    parser.add_argument("act", choices=["check"], metavar="check", help="look, and say")
    parser.add_argument("--backup-hours", type=float, default=24.0, metavar="N", help="how old a backup may be")
    frame, given = read(frame, parser, arguments)
    home = frame.folder("the store is looked at from a machine that reaches it", "falaj upgrade check --at FOLDER")
    from falaj.platform import load_settings
    from falaj.plugins import plugin

    settings = load_settings(home)
    url = settings.at(settings.store)
    if url.startswith("sqlite:") and not _is_there(url):
        raise NotFound("there is no store yet", "falaj up makes one")
    store: Any = plugin("store", url.partition(":")[0])(url, {"settle": False})
    try:
        found = list(findings(store, time.time(), 3600.0 * given.backup_hours))
    finally:
        store.close()
    return put_findings(found, MISS, as_json=frame.as_json)


def findings(store: Any, now: float, backup_s: float) -> Iterator[Finding]:
    """What a program of this version finds at a store."""
    if not isinstance(store, CanJoin):
        yield Finding("store", LOOK, "it does not tell its schema", "stop every replica, upgrade, start again")
        return
    standing = store.standing(now)
    yield _schema(standing)
    yield _steps(standing)
    yield _replicas(standing)
    yield _backup(store, now, backup_s)


def _schema(found: Standing) -> Finding:
    said = f"the store has {found.schema}, falaj {VERSION} knows up to {found.knows}"
    if found.schema > found.knows and found.oldest > found.knows:
        return Finding("schema", MISS, f"{said}, and it needs {found.oldest}", "use a newer version")
    return Finding("schema", GOOD, said)


def _steps(found: Standing) -> Finding:
    num = max(0, found.knows - found.schema)
    if not num:
        return Finding("steps", GOOD, "none")
    took_s = 1 + found.rows // ROWS_PER_S
    return Finding("steps", GOOD, f"{num}, over about {found.rows:,} rows: at most some {took_s} s while others work")


def _replicas(found: Standing) -> Finding:
    processes = [Replica.decode(owner) for owner in found.replicas]
    seen = Counter(process.version for process in processes if process.role != "gateway")
    if not seen:
        return Finding("replicas", GOOD, "none runs")
    said = ", ".join(f"{num} of {version}" for version, num in sorted(seen.items()))
    versions = sorted({process.version for process in processes})
    if far := [version for version in versions if not neighbours(version, VERSION)]:
        return Finding("replicas", MISS, said, f"{VERSION} may not stand beside {far[0]}: go by the versions between")
    return Finding("replicas", GOOD, said)


def neighbours(one: str, other: str) -> bool:
    """Whether two versions may work side by side: the same or the next minor one, of one major version."""
    try:
        (major, minor), (other_major, other_minor) = ([int(part) for part in v.split(".")[:2]] for v in (one, other))
    except ValueError:
        return one == other
    return major == other_major and abs(minor - other_minor) <= 1


def _backup(store: Any, now: float, most_s: float) -> Finding:
    """The newest one that the log has: to the place of backups (store.preserve), or into a file (store.backup)."""
    newest, after = 0.0, ""
    fix = "falaj store preserve, or: falaj store backup --out FILE"
    try:
        while events := store.events(after, verb="store.backup store.preserve", limit=PAGE):
            newest, after = max(newest, *(event.at for event in events)), events[-1].pos
    except FalajError as error:
        return Finding("backup", LOOK, f"the log cannot be asked: {error.message}", fix)
    if not newest:
        return Finding("backup", LOOK, "the log has no backup", fix)
    age_s = now - newest
    state = GOOD if age_s <= most_s else MISS
    return Finding("backup", state, f"{age_s / 3600:.1f} h old", "" if state == GOOD else fix)


def _is_there(url: str) -> bool:
    from pathlib import Path

    return Path(url.partition(":")[2].removeprefix("//")).exists()
