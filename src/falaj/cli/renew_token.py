"""`falaj renew-token FILE`: replaces the token in a file by its next one, for programs that read it from there.

The service renews its own token: no administrator's token lies on the machine. The file is replaced only once the new
token is known, so it is never empty or half written; the old token stays valid until it ends by itself.
"""

import os
import tempfile
from pathlib import Path

from falaj.cli.frame import Frame
from falaj.cli.parsing import Parser, read
from falaj.cli.tables import put
from falaj.core.errors import Invalid, Unavailable


def renew_token(frame: Frame, arguments: list[str]) -> int:
    """Renew the token in a file at the platform that gave it."""
    parser = Parser(
        prog="falaj renew-token",
        description="Replace the token in a file by its next one, with the rights of the token itself. Run it by a "
        "timer, more often than tokens end.",
        epilog="Example: falaj renew-token /etc/prometheus/falaj.token --at https://falaj.example",
    )
    parser.add_argument("file", metavar="FILE", help="holds the token and nothing else")
    parser.add_argument(
        "--hours", type=float, default=24.0, metavar="N", help="how long the next one lives; default 24"
    )
    frame, found = read(frame, parser, arguments)
    file = Path(found.file)
    token = file.read_text(encoding="utf-8").strip()
    if not token or "\n" in token:
        raise Invalid(
            f"{file}: expected one token", "falaj people token NAME --hours 24 --renewable 8760 gives the first"
        )
    address, _, ca = frame.login()
    if address.startswith(("http://", "https://")):
        from falaj.plugins import plugin

        platform = plugin("remote", "http")(address, token=token, ca=ca)
    else:
        from falaj.platform import connect

        platform = connect(address, token=token)
    with platform:
        issued = platform.people.renew(hours=found.hours)
    replace_secret(file, f"{issued.token}\n")
    put(
        {"renewed": str(file), "expires": issued.expires, "renewable_until": issued.renewable_until},
        as_json=frame.as_json,
    )
    return 0


def replace_secret(file: Path, text: str) -> None:
    """Write a file of the same owner and mode beside it, durably, and rename it into place."""
    state = file.stat()
    try:
        descriptor, draft = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as out:
                os.fchmod(out.fileno(), state.st_mode & 0o7777)
                if (state.st_uid, state.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(out.fileno(), state.st_uid, state.st_gid)
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            Path(draft).replace(file)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as error:
        hint = "the present token is still in it; run this as the file's owner, in a folder that it may write to"
        raise Unavailable(f"{file} cannot be replaced: {error.strerror}", hint) from error
