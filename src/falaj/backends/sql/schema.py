"""The schema as a list of steps. A step once released is never edited: the next change is the next step."""

from collections.abc import Mapping, Sequence

from falaj.core.errors import Unavailable

# {text} sorts by bytes on every engine, so that pages and cursors agree. How the log lies is each engine's own affair;
# the place of an event is (epoch, xid, seq) on all of them. A restore begins a new epoch, so cursors handed out before
# it stay true wherever the log stands then.
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
NEWEST = len(STEPS)

META = "CREATE TABLE IF NOT EXISTS meta (name {text} NOT NULL PRIMARY KEY, value {int} NOT NULL)"
VERSION = "SELECT value FROM meta WHERE name = 'schema'"
SET_VERSION = """INSERT INTO meta (name, value) VALUES ('schema', {version})
    ON CONFLICT (name) DO UPDATE SET value = excluded.value"""


def pending(version: int, dialect: Mapping[str, str], log: Sequence[Sequence[str]], upto: int = NEWEST) -> list[str]:
    """The statements that lead from schema `version` to `upto`; Unavailable when this program is the older one.

    `log` has the engine's own statements for its log, for each of the steps.
    """
    if version > upto:
        raise Unavailable(
            f"the store has schema {version} and this program knows up to {upto}",
            "upgrade this installation, then start it again",
        )
    statements: list[str] = []
    for shared, own in zip(STEPS[version:upto], log[version:upto], strict=True):
        statements += [statement.format_map(dialect) for statement in shared]
        statements += own
    if statements:
        statements.append(SET_VERSION.format(version=upto))
    return statements
