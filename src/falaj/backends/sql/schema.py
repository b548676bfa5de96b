"""The schema as a list of steps. A step once released is never edited: the next change is the next step."""

from collections.abc import Mapping

from falaj.core.errors import Unavailable

# {text} sorts by bytes on every engine, so that pages and cursors agree. The place of an event is (epoch, xid, seq): a
# restore begins a new epoch, so cursors handed out before it stay true on whatever engine the log stands then.
STEPS: tuple[tuple[str, ...], ...] = (
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
        """CREATE TABLE events (
            {place}
            id {text} NOT NULL, tenant {text} NOT NULL, zone {text} NOT NULL, verb {text} NOT NULL,
            actor {text} NOT NULL, kind {text} NOT NULL, project {text} NOT NULL, name {text} NOT NULL,
            version {text} NOT NULL, at {real} NOT NULL, request {text} NOT NULL, leaf {blob} NOT NULL,
            data {blob} NOT NULL, inputs {text} NOT NULL
            {order})""",
        """CREATE TABLE leases (
            name {text} NOT NULL PRIMARY KEY, owner {text} NOT NULL, token {int} NOT NULL, until {real} NOT NULL)""",
        "CREATE INDEX events_log ON events (tenant, zone{after})",
        "CREATE INDEX events_id ON events (id)",
        "{imported}",
        "INSERT INTO meta (name, value) VALUES ('epoch', 1)",
    ),
    (
        # Lists ask for the distinct cells of a kind and for the newest records; without these both read the whole kind.
        "CREATE INDEX records_cell ON records (tenant, kind, cell)",
        "CREATE INDEX records_at ON records (tenant, kind, at)",
        "CREATE INDEX events_subject ON events (tenant, kind, project, name)",
        "CREATE INDEX events_request ON events (request)",
    ),
)
NEWEST = len(STEPS)

META = "CREATE TABLE IF NOT EXISTS meta (name {text} NOT NULL PRIMARY KEY, value {int} NOT NULL)"
VERSION = "SELECT value FROM meta WHERE name = 'schema'"
SET_VERSION = """INSERT INTO meta (name, value) VALUES ('schema', {version})
    ON CONFLICT (name) DO UPDATE SET value = excluded.value"""


def pending(version: int, dialect: Mapping[str, str], upto: int = NEWEST) -> list[str]:
    """The statements that lead from schema `version` to `upto`; Unavailable when this program is the older one."""
    if version > upto:
        raise Unavailable(
            f"the store has schema {version} and this program knows up to {upto}",
            "upgrade this installation, then start it again",
        )
    statements = [statement.format_map(dialect) for step in STEPS[version:upto] for statement in step]
    statements = [statement for statement in statements if statement]
    if statements:
        statements.append(SET_VERSION.format(version=upto))
    return statements
