"""`falaj restore`: a backup brought into an empty store. No verb, since a house that stands is not empty."""

import sys

from falaj.cli.frame import Frame, Parser, read
from falaj.cli.tables import put
from falaj.core.errors import Invalid


def restore(frame: Frame, arguments: list[str]) -> int:
    """All or nothing, proven by computing the root of every log again."""
    parser = Parser(
        prog="falaj restore",
        description="Bring a backup into the empty store of a folder's settings; the root of every log proves it.",
        epilog="Example: falaj store backup --out ledger.backup && falaj restore ledger.backup --at /srv/falaj",
    )
    parser.add_argument("file", help="what `falaj store backup` wrote")
    frame, found = read(frame, parser, arguments)
    if frame.at.startswith(("http://", "https://")):
        raise Invalid("a backup is restored on the machine that holds the store", "falaj restore FILE --at FOLDER")
    from falaj.platform import load_settings, restore_into

    report = restore_into(load_settings(frame.at), found.file, None if frame.as_json else _told)
    put(report, as_json=frame.as_json)
    return 0


def _told(done: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done:,} rows restored")
