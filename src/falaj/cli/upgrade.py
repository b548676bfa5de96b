"""`falaj upgrade check`: whether this program may join those that run, and what it would do to their store."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from falaj.cli.argument_parsing import CommandParser, parse_arguments
from falaj.cli.cli_context import CliContext
from falaj.cli.output import print_check_results
from falaj.core.check_result import CheckResult
from falaj.core.errors import FalajError, NotFound
from falaj.core.ports import SchemaStatus, SupportsSchemaUpgrade
from falaj.core.release import VERSION
from falaj.core.replica_info import ReplicaInfo

STATE_OK, STATE_WARN, STATE_BAD = "ok", "look", "MISS"
INDEXED_ROWS_PER_S = 250_000
"""How fast an index is made, at the least; others write meanwhile."""
PAGE_SIZE = 1000


def run_upgrade_command(context: CliContext, arguments: list[str]) -> int:
    """Look at the store of a folder's settings, and change nothing."""
    parser = CommandParser(
        prog="falaj upgrade",
        description="Say whether this program may join those that run on the store, which steps it would take there, "
        "and how old the newest backup is. Nothing is changed. Exit code 1 when it may not, or should not.",
        epilog="Example: falaj upgrade check --at /var/lib/falaj && systemctl restart falaj",
    )
    parser.add_argument("act", choices=["check"], metavar="check", help="look, and say")
    parser.add_argument("--backup-hours", type=float, default=24.0, metavar="N", help="how old a backup may be")
    context, parsed_arguments = parse_arguments(context, parser, arguments)
    home = context.folder("the store is looked at from a machine that reaches it", "falaj upgrade check --at FOLDER")
    from falaj.plugins import load_plugin
    from falaj.server import load_settings

    settings = load_settings(home)
    url = settings.at(settings.store)
    if url.startswith("sqlite:") and not _store_file_exists(url):
        raise NotFound("there is no store yet", "falaj up makes one")
    store: Any = load_plugin("store", url.partition(":")[0])(url, {"settle": False})
    try:
        results = list(check_store(store, time.time(), 3600.0 * parsed_arguments.backup_hours))
    finally:
        store.close()
    return print_check_results(results, STATE_BAD, as_json=context.as_json)


def check_store(store: Any, now: float, backup_s: float) -> Iterator[CheckResult]:
    """What a program of this version finds at a store."""
    if not isinstance(store, SupportsSchemaUpgrade):
        yield CheckResult(
            "store", STATE_WARN, "it does not tell its schema", "stop every replica, upgrade, start again"
        )
        return
    schema_status = store.standing(now)
    yield _check_schema(schema_status)
    yield _check_steps(schema_status)
    yield _check_replicas(schema_status)
    yield _check_backup(store, now, backup_s)


def _check_schema(schema_status: SchemaStatus) -> CheckResult:
    text = f"the store has {schema_status.schema}, falaj {VERSION} knows up to {schema_status.knows}"
    if schema_status.schema > schema_status.knows and schema_status.oldest > schema_status.knows:
        return CheckResult("schema", STATE_BAD, f"{text}, and it needs {schema_status.oldest}", "use a newer version")
    return CheckResult("schema", STATE_OK, text)


def _check_steps(schema_status: SchemaStatus) -> CheckResult:
    step_count = max(0, schema_status.knows - schema_status.schema)
    if not step_count:
        return CheckResult("steps", STATE_OK, "none")
    took_s = 1 + schema_status.rows // INDEXED_ROWS_PER_S
    return CheckResult(
        "steps",
        STATE_OK,
        f"{step_count}, over about {schema_status.rows:,} rows: at most some {took_s} s while others work",
    )


def _check_replicas(schema_status: SchemaStatus) -> CheckResult:
    processes = [ReplicaInfo.decode(owner) for owner in schema_status.replicas]
    count_by_version = Counter(process.version for process in processes if process.role != "gateway")
    if not count_by_version:
        return CheckResult("replicas", STATE_OK, "none runs")
    text = ", ".join(f"{replica_count} of {version}" for version, replica_count in sorted(count_by_version.items()))
    versions = sorted({process.version for process in processes})
    if incompatible_versions := [version for version in versions if not are_neighbour_versions(version, VERSION)]:
        return CheckResult(
            "replicas",
            STATE_BAD,
            text,
            f"{VERSION} may not stand beside {incompatible_versions[0]}: go by the versions between",
        )
    return CheckResult("replicas", STATE_OK, text)


def are_neighbour_versions(first_version: str, second_version: str) -> bool:
    """Whether two versions may work side by side: the same or the next minor one, of one major version."""
    try:
        (major, minor), (other_major, other_minor) = (
            [int(part) for part in version.split(".")[:2]] for version in (first_version, second_version)
        )
    except ValueError:
        return first_version == second_version
    return major == other_major and abs(minor - other_minor) <= 1


def _check_backup(store: Any, now: float, max_age_s: float) -> CheckResult:
    """The newest one that the log has: to the place of backups (store.preserve), or into a file (store.backup)."""
    newest_at, after = 0.0, ""
    hint = "falaj store preserve, or: falaj store backup --out FILE"
    try:
        while events := store.events(after, verb="store.backup store.preserve", limit=PAGE_SIZE):
            newest_at, after = max(newest_at, *(event.at for event in events)), events[-1].pos
    except FalajError as error:
        return CheckResult("backup", STATE_WARN, f"the log cannot be asked: {error.message}", hint)
    if not newest_at:
        return CheckResult("backup", STATE_WARN, "the log has no backup", hint)
    age_s = now - newest_at
    state = STATE_OK if age_s <= max_age_s else STATE_BAD
    return CheckResult("backup", state, f"{age_s / 3600:.1f} h old", "" if state == STATE_OK else hint)


def _store_file_exists(url: str) -> bool:
    from pathlib import Path

    return Path(url.partition(":")[2].removeprefix("//")).exists()
