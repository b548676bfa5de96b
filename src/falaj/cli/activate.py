"""`falaj restore --activate`: lifts the fence of a restored copy, once its old installation is shown to be gone.

That nothing answers proves little: a network may be cut. So what can be seen to live refuses the activation, and what
cannot be seen takes a reason, which the log keeps.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import httpx

from falaj.cli.cli_context import CliContext
from falaj.cli.output import print_result
from falaj.core.errors import Conflict, FalajError, Invalid
from falaj.core.settings import Settings
from falaj.store.copy_fence import CopyMark, get_installation_origin, lift_fence, read_copy_mark

PROBE_TIMEOUT_S = 5.0


def activate_copy(context: CliContext, reason: str) -> int:
    """Check that nothing of the old installation can be seen to live, then lift the fence."""
    home = context.folder(
        "a copy is activated on a machine that reaches its store", "falaj restore --activate --at FOLDER"
    )
    from falaj.server import Server, load_settings

    settings = load_settings(home)
    with contextlib.closing(Server(settings)) as server:
        copy_mark = read_copy_mark(server.ledger)
        if copy_mark is None:
            raise Conflict("this installation is not fenced", "falaj status shows whether it is")
        evidence = [
            *_find_answering_addresses(copy_mark, get_installation_origin(server.ledger)),
            *_find_newer_backup(settings, copy_mark),
        ]
        if evidence:
            hint = "stop it there (systemctl disable --now falaj) and repeat"
            raise Conflict(f"the old installation lives: {'; '.join(evidence)}", hint)
        if not reason.strip():
            addresses = ", ".join(copy_mark.addresses) or "no address of it is known"
            raise Invalid(
                f"nothing of the old installation answers ({addresses}), which does not prove that it is gone",
                'say how you know: falaj restore --activate --old-is-gone "its machine is off, its disk was destroyed"',
            )
        lift_fence(server.ledger, server.system(), reason.strip())
    print_result({"activated": home or settings.home, "reason": reason.strip()}, as_json=context.as_json)
    sys.stderr.write("a running falaj up starts its loops within seconds\n")
    return 0


def _find_answering_addresses(copy_mark: CopyMark, origin: str) -> Iterator[str]:
    """Addresses at which an installation of the same origin answers that is not fenced itself."""
    for address in copy_mark.addresses:
        public_info = _read_public_info(address)
        if public_info.get("origin") == origin and not public_info.get("fenced"):
            yield f"it answers at {address}"


def _read_public_info(address: str) -> dict[str, Any]:
    """The public description of an installation; empty where none answers."""
    try:
        # Nothing secret is sent and nothing is believed but that something answers, so its certificate does not matter.
        response = httpx.get(f"{address}/v1/login", timeout=PROBE_TIMEOUT_S, verify=False, trust_env=False)  # noqa: S501 # nosec B501
        public_info = response.json()
    except (httpx.HTTPError, ValueError):
        return {}
    return public_info if isinstance(public_info, dict) else {}


def _find_newer_backup(settings: Settings, copy_mark: CopyMark) -> Iterator[str]:
    """A backup that was made at the copy's source after the copy."""
    from falaj.plugins import load_plugin
    from falaj.store.backup_target import BackupTarget

    scheme = copy_mark.source.partition(":")[0]
    if scheme not in ("dir", "s3", "gs", "az"):
        return
    try:
        with contextlib.closing(load_plugin("blobs", scheme)(settings.at(copy_mark.source), {})) as store:
            newest_backup = BackupTarget(store).newest()
    except FalajError:
        return
    if newest_backup is not None and newest_backup.at > copy_mark.restored_at:
        yield f"it made the backup {newest_backup.name} after this copy was restored"
