"""Python functions of views and services, opened to be called: always in an isolated process, never in the caller's.

The first use of a function on a machine, and the first use after it changed, is logged with its digest and owner. The
digests are kept in `functions.json` in the user's configuration folder.
"""

import json
import logging
import os
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from threading import Lock

from falaj.asof.records import ServicePlan
from falaj.core.client_command import Client
from falaj.core.errors import FalajError, Invalid
from falaj.core.ref import Ref
from falaj.features.function_text import check_function_text, hash_function_text
from falaj.worker.function_sandbox import FunctionSandbox

_log = logging.getLogger(__name__)
_MAX_PINS = 10_000
_MAX_OPEN_SANDBOXES = 8
"""Functions whose processes this process keeps for the next call; the one that was used longest ago ends first."""
_OPEN_SANDBOXES: OrderedDict[tuple[str, str, str, bool], FunctionSandbox] = OrderedDict()
"""By platform, view or service, digest, and whether isolation is required. A function can keep in its process what it
was given, so views of different labels that have the same text share none."""
_SANDBOX_LOCK = Lock()


def open_function(client: Client, defined_by: Ref, text: str, digest: str = "") -> FunctionSandbox:
    """The function of a view or service, ready to be called.

    On the owner's own embedded folder a machine that cannot isolate the process runs it with a warning; elsewhere this
    is Unavailable.
    """
    name, actual_digest = check_function_text(text), hash_function_text(text)
    if digest and digest != actual_digest:
        raise Invalid(
            f"{defined_by}: expected the function {digest}, got {actual_digest}", "apply the definition again"
        )
    log_first_use(client, defined_by, name, actual_digest)
    required = not client.address.startswith("dir:")
    key = client.address, str(defined_by), actual_digest, required
    with _SANDBOX_LOCK:
        if key not in _OPEN_SANDBOXES:
            _OPEN_SANDBOXES[key] = FunctionSandbox(name, text, is_required=required)
        _OPEN_SANDBOXES.move_to_end(key)
        evicted = _OPEN_SANDBOXES.popitem(last=False)[1] if len(_OPEN_SANDBOXES) > _MAX_OPEN_SANDBOXES else None
        function = _OPEN_SANDBOXES[key]
    if evicted is not None:
        evicted.close()  # waits for a call in progress; the next call starts it again
    return function


def service_functions(client: Client, plan: ServicePlan) -> dict[str, FunctionSandbox]:
    """The functions of a service by digest."""
    service = Ref.parse(plan.ref)
    return {
        computed.digest: open_function(client, service, computed.source, computed.digest)
        for computed in plan.computed
        if computed.source
    }


def log_first_use(client: Client, defined_by: Ref, name: str, digest: str) -> None:
    """Log the first use of a function on this machine, or of another digest than before; remember the digest."""
    pins, key = _load_pins(), f"{client.address} {defined_by.bare} {name}"
    known_digest = pins.get(key, "")
    if known_digest == digest:
        return
    owner = ""
    with suppress(FalajError):
        owner = "".join(char for char in str(client.features.show(defined_by).owner) if char.isprintable())
    owner_text = f" of {owner}" if owner else ""
    if known_digest:
        _log.warning(
            "function %s%s in %s changed: it was %s and is now %s", name, owner_text, defined_by, known_digest, digest
        )
    else:
        _log.warning("first use of function %s%s in %s on this machine: %s", name, owner_text, defined_by, digest)
    _save_pins({**dict(list(pins.items())[-_MAX_PINS:]), key: digest})


def _get_pins_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "falaj" / "functions.json"


def _load_pins() -> dict[str, str]:
    with suppress(OSError, ValueError, RuntimeError):
        pins = json.loads(_get_pins_path().read_text(encoding="utf-8"))
        return {str(key): str(digest) for key, digest in pins.items()} if isinstance(pins, dict) else {}
    return {}


def _save_pins(pins: dict[str, str]) -> None:
    """Best effort: a job has no configuration folder to keep, and two processes may both log a first use."""
    with suppress(OSError, RuntimeError):
        path = _get_pins_path()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}.tmp")
        scratch.write_text(json.dumps(pins, indent=1), encoding="utf-8")
        scratch.replace(path)
