"""`falaj restore --activate`: lifts the fence of a restored copy, once its old installation is shown to be gone.

That nothing answers proves little: a network may be cut. So what can be seen to live refuses the activation, and what
cannot be seen takes a reason, which the log keeps.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import httpx

from falaj.cli.frame import Frame
from falaj.cli.tables import put
from falaj.core.errors import Conflict, FalajError, Invalid
from falaj.core.settings import Settings
from falaj.store.fence import CopyMark, lift_fence, origin_of, read_mark

ANSWER_S = 5.0


def activate(frame: Frame, reason: str) -> int:
    """Check that nothing of the old installation can be seen to live, then lift the fence."""
    home = frame.folder(
        "a copy is activated on a machine that reaches its store", "falaj restore --activate --at FOLDER"
    )
    from falaj.platform import House, load_settings

    settings = load_settings(home)
    with contextlib.closing(House(settings)) as house:
        mark = read_mark(house.ledger)
        if mark is None:
            raise Conflict("this installation is not fenced", "falaj status shows whether it is")
        signs = [*_answering(mark, origin_of(house.ledger)), *_newer_backup(settings, mark)]
        if signs:
            hint = "stop it there (systemctl disable --now falaj) and repeat"
            raise Conflict(f"the old installation lives: {'; '.join(signs)}", hint)
        if not reason.strip():
            addresses = ", ".join(mark.addresses) or "no address of it is known"
            raise Invalid(
                f"nothing of the old installation answers ({addresses}), which does not prove that it is gone",
                'say how you know: falaj restore --activate --old-is-gone "its machine is off, its disk was destroyed"',
            )
        lift_fence(house.ledger, house.system(), reason.strip())
    put({"activated": home or settings.home, "reason": reason.strip()}, as_json=frame.as_json)
    sys.stderr.write("a running falaj up starts its loops within seconds\n")
    return 0


def _answering(mark: CopyMark, origin: str) -> Iterator[str]:
    """Addresses at which an installation of the same origin answers that is not fenced itself."""
    for address in mark.addresses:
        about = _read_about(address)
        if about.get("origin") == origin and not about.get("fenced"):
            yield f"it answers at {address}"


def _read_about(address: str) -> dict[str, Any]:
    """The public description of an installation; empty where none answers."""
    try:
        # Nothing secret is sent and nothing is believed but that something answers, so its certificate does not matter.
        answer = httpx.get(f"{address}/v1/login", timeout=ANSWER_S, verify=False, trust_env=False)  # noqa: S501 # nosec B501
        about = answer.json()
    except (httpx.HTTPError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def _newer_backup(settings: Settings, mark: CopyMark) -> Iterator[str]:
    """A backup that was made at the copy's source after the copy."""
    from falaj.plugins import plugin
    from falaj.store.shelf import Shelf

    scheme = mark.source.partition(":")[0]
    if scheme not in ("dir", "s3", "gs", "az"):
        return
    try:
        with contextlib.closing(plugin("blobs", scheme)(settings.at(mark.source), {})) as store:
            newest = Shelf(store).newest()
    except FalajError:
        return
    if newest is not None and newest.at > mark.restored_at:
        yield f"it made the backup {newest.name} after this copy was restored"
