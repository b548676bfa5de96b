"""The schema as a list of steps. A step once released is never edited: the next change is the next step.

A step only adds, so that the version before goes on with a store that this one has moved, and can come back to it. What
takes something away is a step of its own, named in CONTRACTS, of a version whose forerunner already does without: it is
left until no program lives that would miss it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from falaj.core.errors import Unavailable
from falaj.core.replica_info import ReplicaInfo

# {text} sorts by bytes on every engine, so that pages and cursors agree. How the log lies is each engine's own affair;
# the place of an event is (epoch, xid, seq) on all of them. A restore begins a new epoch, so cursors handed out before
# it stay true wherever the log stands then.
SCHEMA_STEPS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE records (
            tenant {text} NOT NULL, kind {text} NOT NULL, project {text} NOT NULL, name {text} NOT NULL,
            version {text} NOT NULL, rev {int} NOT NULL, cell {text} NOT NULL, body {blob} NOT NULL,
            at {real} NOT NULL, terms {text} NOT NULL,
            PRIMARY KEY (tenant, kind, project, name, version))""",
        """CREATE TABLE terms (
            tenant {text} NOT NULL, kind {text} NOT NULL, field {text} NOT NULL, value {text} NOT NULL,
            project {text} NOT NULL, name {text} NOT NULL, version {text} NOT NULL,
            PRIMARY KEY (tenant, kind, field, value, project, name, version)) {clustered}""",
        """CREATE TABLE leases (
            name {text} NOT NULL PRIMARY KEY, owner {text} NOT NULL, token {int} NOT NULL, until {real} NOT NULL)""",
        "INSERT INTO meta (name, value) VALUES ('epoch', 1)",
    ),
    (
        # Lists ask for the distinct cells of a kind and for the newest records; without these both read the whole kind.
        "CREATE INDEX records_cell ON records (tenant, kind, cell)",
        "CREATE INDEX records_at ON records (tenant, kind, at)",
    ),
    (),
)
CONTRACTING_STEPS: frozenset[int] = frozenset()
"""Steps that take away what programs of a lower schema use, by number (the first step is 1)."""
NEWEST_VERSION = len(SCHEMA_STEPS)

CREATE_META = "CREATE TABLE IF NOT EXISTS meta (name {text} NOT NULL PRIMARY KEY, value {int} NOT NULL)"
SELECT_NUMBERS = "SELECT name, value FROM meta WHERE name IN ('schema', 'oldest')"
SET_NUMBER = """INSERT INTO meta (name, value) VALUES ('{name}', {value})
    ON CONFLICT (name) DO UPDATE SET value = excluded.value"""
SELECT_LIVE_REPLICAS = "SELECT owner FROM leases WHERE name >= 'replica:' AND name < 'replica;' AND until > ?"


class SchemaStep(NamedTuple):
    """One step as an engine takes it, the mark that it was taken at the end."""

    statements: list[str]
    indexes: bool
    """True when it makes indexes and nothing else, which an engine may be able to do beside its writers."""


def list_pending_steps(
    schema_numbers: Mapping[str, int],
    dialect: Mapping[str, str],
    log_steps: Sequence[Sequence[str]],
    live_replicas: Iterable[str] = (),
    target_version: int = NEWEST_VERSION,
) -> list[SchemaStep]:
    """The steps that lead from the store's numbers to `target_version`; Unavailable when this program is too old for
    the store.

    `log_steps` has the engine's own statements for its log, for each of the steps; `live_replicas` are the replicas
    that are there.
    """
    version, oldest = schema_numbers.get("schema", 0), schema_numbers.get("oldest", 0)
    if version > target_version and oldest > target_version:
        raise Unavailable(
            f"the store has schema {version}, for programs that know "
            f"{oldest}, and this one knows up to {target_version}",
            "upgrade this installation, then start it again",
        )
    min_replica_schema = min((ReplicaInfo.decode(owner).schema for owner in live_replicas), default=target_version)
    steps = []
    for number, (shared_statements, own_statements) in enumerate(
        zip(SCHEMA_STEPS[version:target_version], log_steps[version:target_version], strict=True), version + 1
    ):
        if number in CONTRACTING_STEPS and min_replica_schema < number:
            break
        statements = [*(statement.format_map(dialect) for statement in shared_statements), *own_statements]
        only_creates_indexes = all(text.startswith("CREATE INDEX ") for text in statements)
        new_numbers = {"schema": number} | ({"oldest": number} if number in CONTRACTING_STEPS else {})
        steps.append(
            SchemaStep(
                [*statements, *(SET_NUMBER.format(name=name, value=value) for name, value in new_numbers.items())],
                only_creates_indexes,
            )
        )
    return steps
