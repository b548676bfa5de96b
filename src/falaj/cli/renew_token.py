"""`falaj renew-token FILE`: replaces the token in a file by its next one, for programs that read it from there.

The service renews its own token: no administrator's token lies on the machine. The file is replaced only once the new
token is known, so it is never empty or half written; the old token stays valid until it ends by itself.
"""

import os
import tempfile
from pathlib import Path

from falaj.cli.argument_parsing import CommandParser, parse_arguments
from falaj.cli.cli_context import CliContext
from falaj.cli.output import print_result
from falaj.core.errors import Invalid, Unavailable


def run_renew_token_command(context: CliContext, arguments: list[str]) -> int:
    """Renew the token in a file at the platform that gave it."""
    parser = CommandParser(
        prog="falaj renew-token",
        description="Replace the token in a file by its next one, with the rights of the token itself. Run it by a "
        "timer, more often than tokens end.",
        epilog="Example: falaj renew-token /etc/prometheus/falaj.token --at https://falaj.example",
    )
    parser.add_argument("file", metavar="FILE", help="holds the token and nothing else")
    parser.add_argument(
        "--hours", type=float, default=24.0, metavar="N", help="how long the next one lives; default 24"
    )
    context, parsed_arguments = parse_arguments(context, parser, arguments)
    file = Path(parsed_arguments.file)
    token = file.read_text(encoding="utf-8").strip()
    if not token or "\n" in token:
        raise Invalid(
            f"{file}: expected one token", "falaj people token NAME --hours 24 --renewable 8760 gives the first"
        )
    address, _, ca = context.login()
    if address.startswith(("http://", "https://")):
        from falaj.plugins import load_plugin

        client = load_plugin("remote", "http")(address, token=token, ca=ca)
    else:
        from falaj.server import connect

        client = connect(address, token=token)
    with client:
        issued = client.people.renew(hours=parsed_arguments.hours)
    replace_secret_file(file, f"{issued.token}\n")
    print_result(
        {"renewed": str(file), "expires": issued.expires, "renewable_until": issued.renewable_until},
        as_json=context.as_json,
    )
    return 0


def replace_secret_file(file: Path, text: str) -> None:
    """Write a file of the same owner and mode beside it, durably, and rename it into place."""
    file_status = file.stat()
    try:
        descriptor, draft_path = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as output:
                os.fchmod(output.fileno(), file_status.st_mode & 0o7777)
                if (file_status.st_uid, file_status.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(output.fileno(), file_status.st_uid, file_status.st_gid)
                output.write(text)
                output.flush()
                os.fsync(output.fileno())
            Path(draft_path).replace(file)
        except BaseException:
            Path(draft_path).unlink(missing_ok=True)
            raise
    except OSError as error:
        hint = "the present token is still in it; run this as the file's owner, in a folder that it may write to"
        raise Unavailable(f"{file} cannot be replaced: {error.strerror}", hint) from error
