"""`falaj doctor`: looks at the set-up, says what is wrong and what to do about it."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from falaj.cli.argument_parsing import CommandParser, parse_arguments
from falaj.cli.cli_context import CliContext
from falaj.cli.output import print_check_results
from falaj.core.check_result import CheckResult
from falaj.core.errors import FalajError
from falaj.core.settings import Settings

STATE_OK, STATE_WARN, STATE_RISK, STATE_BAD = "ok", "look", "RISK", "FIX"
MIN_FREE_BYTES, LOW_FREE_BYTES = 1 << 29, 5 << 30
REQUIRED_PACKAGES = {
    "postgresql": ("psycopg", "postgres"),
    "s3": ("obstore", "s3"),
    "gs": ("obstore", "s3"),
    "az": ("obstore", "s3"),
    "pkcs11": ("pkcs11", "pkcs11"),
}


def run_doctor_command(context: CliContext, arguments: list[str]) -> int:
    """Exit code 0 when nothing must be fixed, 1 otherwise."""
    context, _ = parse_arguments(
        context, CommandParser(prog="falaj doctor", description="Check the set-up and say what to fix."), arguments
    )
    home = context.folder("the doctor looks at the machine it runs on", "--at FOLDER, or: falaj status --at URL")
    from falaj.server import load_settings

    settings = load_settings(home)
    return print_check_results([*check_machine(settings), *check_server(settings)], STATE_BAD, as_json=context.as_json)


def check_machine(settings: Settings) -> Iterator[CheckResult]:
    """What can be seen without opening anything."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield CheckResult(
        "python",
        STATE_OK if sys.version_info >= (3, 11) else STATE_BAD,
        version,
        "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer",
    )
    home = Path(settings.home)
    yield _check_disk_space(home)
    yield from _check_permissions(home)
    for url in (settings.store, settings.blobs, settings.secrets, *settings.identity.split(",")):
        scheme = url.strip().partition(":")[0]
        if scheme in REQUIRED_PACKAGES and find_spec(REQUIRED_PACKAGES[scheme][0]) is None:
            yield CheckResult(
                "extras",
                STATE_BAD,
                f"{scheme}: needs {REQUIRED_PACKAGES[scheme][0]}",
                f"pip install 'falaj[{REQUIRED_PACKAGES[scheme][1]}]'",
            )
    yield from _check_certificates(settings, home)
    if settings.oidc.issuer:
        yield _check_identity_provider(settings)
    yield _check_sandbox(settings)
    yield _check_limits()


def check_server(settings: Settings) -> Iterator[CheckResult]:
    """Backends first; then, where a platform of this version stands on them, what only the platform itself knows."""
    from falaj.cli.doctor_backends import examine_backends, is_current
    from falaj.server import LocalClient, Server

    backend_results = list(examine_backends(settings))
    yield from backend_results
    if not is_current(backend_results):
        return
    try:
        server = Server(settings)
    except FalajError as error:
        yield CheckResult("platform", STATE_BAD, error.message, error.hint)
        return
    try:
        for dependency in server.dependencies.health():
            if not dependency.answers:
                yield CheckResult(dependency.name, STATE_BAD, dependency.problem, dependency.hint)
            elif dependency.name not in {check_result.check for check_result in backend_results}:
                yield CheckResult(dependency.name, STATE_OK, "answers")
        if server.fence.read() is not None:
            fenced_text = "FENCED: a restored copy, which starts no job and reaches no cluster, hook or agent"
            yield CheckResult(
                "copy", STATE_BAD, fenced_text, "once the old installation is gone: falaj restore --activate"
            )
        client = LocalClient(server, server.owner())
        for check_function in (_sealing, _unfinished, _clock, _other_clocks, _trusted_time, _unsandboxed):
            yield _run_check(check_function, client)
    finally:
        server.close()


def _run_check(check_function: Callable[[Any], CheckResult], client: Any) -> CheckResult:
    try:
        return check_function(client)
    except FalajError as error:
        return CheckResult(check_function.__name__.strip("_"), STATE_WARN, error.message, error.hint)


def _sealing(client: Any) -> CheckResult:
    newest_checkpoints = client.audit.checkpoints(limit=1)
    if not newest_checkpoints:
        return CheckResult(
            "sealing",
            STATE_WARN,
            "no event is under a checkpoint yet",
            "falaj up seals by itself; or: falaj audit seal",
        )
    age = time.time() - newest_checkpoints[0].at
    is_late = age > max(3600.0, 60 * client.house.settings.seal_s)
    return CheckResult(
        "sealing",
        STATE_WARN if is_late else STATE_OK,
        f"{newest_checkpoints[0].size} events sealed, {age:.0f} s ago",
        "start: falaj up; or: falaj audit seal" if is_late else "",
    )


def _unfinished(client: Any) -> CheckResult:
    unfinished_calls = client.audit.unfinished()
    text = f"{len(unfinished_calls)} acts were begun and have no outcome" if unfinished_calls else "none"
    return CheckResult(
        "unfinished acts",
        STATE_WARN if unfinished_calls else STATE_OK,
        text,
        "falaj audit unfinished shows them; repeat each call" if unfinished_calls else "",
    )


def _clock(client: Any) -> CheckResult:
    """A clock that went back would date new events before old ones."""
    newest_entries = client.audit.log(limit=1).entries
    ahead_s = newest_entries[0].at - time.time() if newest_entries else 0.0
    if ahead_s > 5:
        return CheckResult(
            "clock",
            STATE_BAD,
            f"the log is {ahead_s:.0f} s ahead of this machine",
            "set the clock: timedatectl set-ntp true",
        )
    return CheckResult("clock", STATE_OK, time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime()))


def _other_clocks(client: Any) -> CheckResult:
    """Clocks of the machines we stand on that differ from ours."""
    readings = client.audit.clocks()
    wrong_readings = [reading for reading in readings if not reading.within_limit]
    texts = [
        f"{shown_reading.source} {shown_reading.failed or f'{shown_reading.skew_s:+.1f} s'}"
        for shown_reading in wrong_readings or readings
    ]
    hint = "set the clock: timedatectl set-ntp true" if wrong_readings else ""
    return CheckResult(
        "other clocks", STATE_BAD if wrong_readings else STATE_OK, "; ".join(texts) or "none to compare with", hint
    )


def _trusted_time(client: Any) -> CheckResult:
    """Whether an RFC 3161 server dates the log, and when it last did."""
    settings = client.house.settings.timestamp
    if not settings.server:
        return CheckResult("trusted time", STATE_OK, "no timestamp server is set: times are this machine's")
    timestamps = client.audit.timestamps(limit=1)
    is_late = not timestamps or time.time() - timestamps[0].at > 3 * settings.every_s
    text = f"checkpoint {timestamps[0].checkpoint} is dated" if timestamps else "no checkpoint is dated yet"
    hint = "falaj up asks the server by itself; its log says why it fails" if is_late else ""
    return CheckResult("trusted time", STATE_WARN if is_late else STATE_OK, text, hint)


def _unsandboxed(client: Any) -> CheckResult:
    """Whose jobs run without a sandbox, on any cluster."""
    from falaj.fleet.sandbox import UNSANDBOXED

    unsandboxed_by_cluster = {
        cluster.name: cluster.unsandboxed for cluster in client.clusters.list() if cluster.unsandboxed
    }
    if not unsandboxed_by_cluster:
        return CheckResult("jobs", STATE_OK, "all jobs run in a sandbox")
    text = "; ".join(f"{name}: {UNSANDBOXED[user_group]}" for name, user_group in unsandboxed_by_cluster.items())
    hint = 'set sandbox = "required" to sandbox all jobs and refuse clusters that cannot; see docs/sandbox.md'
    return CheckResult("jobs", STATE_RISK, text, hint)


def _check_disk_space(home: Path) -> CheckResult:
    folder = next(parent for parent in (home, *home.parents) if parent.exists())
    free_bytes = shutil.disk_usage(folder).free
    state = STATE_BAD if free_bytes < MIN_FREE_BYTES else STATE_WARN if free_bytes < LOW_FREE_BYTES else STATE_OK
    return CheckResult(
        "disk", state, f"{free_bytes / 2**30:.1f} GiB free", "" if state == STATE_OK else "make room, or move `home`"
    )


def _check_permissions(home: Path) -> Iterator[CheckResult]:
    """Nobody else may read the folder, the keys or the authority's key."""
    secret_paths = [home, home / "keys", home / "tls", *(home / "keys").glob("**/*"), *(home / "tls").glob("*.key")]
    exposed_paths = [path for path in secret_paths if path.exists() and path.stat().st_mode & 0o077]
    for path in exposed_paths:
        yield CheckResult("permissions", STATE_BAD, f"{path} is open to others", f"chmod go-rwx {path}")
    if home.exists() and not exposed_paths:
        yield CheckResult("permissions", STATE_OK, "only you can read home, keys and certificates' keys")


def _check_certificates(settings: Settings, home: Path) -> Iterator[CheckResult]:
    own_certificate = home / "tls" / "server.pem"
    path = settings.tls.cert or (str(own_certificate) if own_certificate.exists() else "")
    if not path:
        return
    from falaj.api.tls import read_expiry

    try:
        days = (read_expiry(path) - time.time()) / 86400
    except FalajError as error:
        yield CheckResult("certificate", STATE_BAD, error.message, error.hint)
        return
    state = STATE_BAD if days < 0 else STATE_WARN if days < 14 else STATE_OK
    yield CheckResult(
        "certificate",
        state,
        f"good for {days:.0f} days",
        "" if state == STATE_OK else "restart with --tls, or renew your own",
    )


def _check_sandbox(settings: Settings) -> CheckResult:
    """What this machine enforces of the cage that attempts run in."""
    import tempfile

    from falaj.fleet.sandbox import describe_enforced
    from falaj.plugins import load_plugin

    with tempfile.TemporaryDirectory(prefix="falaj-doctor-") as folder:
        try:
            executor = load_plugin("executor", "process")("process:", {"folder": folder, "sandbox": settings.sandbox})
        except FalajError as error:
            return CheckResult("sandbox", STATE_BAD, error.message, error.hint)
        enforced = executor.enforced()
        executor.close()
    hint = "" if all(enforced.values()) else "see docs/sandbox.md for what the kernel must allow"
    if settings.sandbox == "off":
        return CheckResult("sandbox", STATE_WARN, "off: attempts run as the platform does", 'set sandbox = "best"')
    return CheckResult("sandbox", STATE_WARN if hint else STATE_OK, describe_enforced(enforced), hint)


def _check_limits() -> CheckResult:
    """What holds attempts on this machine to the memory and CPU they asked for."""
    import tempfile

    from falaj.plugins import load_plugin

    with tempfile.TemporaryDirectory(prefix="falaj-doctor-") as folder:
        executor = load_plugin("executor", "process")("process:", {"folder": folder})
        enforced_by = executor.capacity()[0].labels["limits"]
        executor.close()
    if enforced_by == "cgroup":
        return CheckResult("limits", STATE_OK, "memory and CPU: a cgroup for each slot")
    text = "memory: watched by the launcher; disk and log: bounded; CPU: NOT enforced below whole cores"
    return CheckResult("limits", STATE_WARN, text, "delegate a cgroup (systemd: Delegate=yes), see docs/sandbox.md")


def _check_identity_provider(settings: Settings) -> CheckResult:
    from falaj.plugins import load_plugin

    provider = load_plugin("identity", "oidc")("oidc:", settings.oidc)
    try:
        provider.begin_login("http://127.0.0.1:1/callback", time.time())
    except FalajError as error:
        return CheckResult("identity provider", STATE_BAD, error.message, error.hint)
    finally:
        provider.close()
    return CheckResult("identity provider", STATE_OK, f"{settings.oidc.issuer} answers")
