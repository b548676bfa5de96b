"""`falaj doctor`: looks at the set-up, says what is wrong and what to do about it."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from falaj.cli.frame import Frame
from falaj.cli.parsing import Parser, read
from falaj.cli.tables import put_findings
from falaj.core.errors import FalajError
from falaj.core.finding import Finding
from falaj.core.settings import Settings

GOOD, WARN, RISK, BAD = "ok", "look", "RISK", "FIX"
SPACE_BAD, SPACE_LOW = 1 << 29, 5 << 30
NEEDS = {
    "postgresql": ("psycopg", "postgres"),
    "s3": ("obstore", "s3"),
    "gs": ("obstore", "s3"),
    "az": ("obstore", "s3"),
    "pkcs11": ("pkcs11", "pkcs11"),
}


def doctor(frame: Frame, arguments: list[str]) -> int:
    """Exit code 0 when nothing must be fixed, 1 otherwise."""
    frame, _ = read(frame, Parser(prog="falaj doctor", description="Check the set-up and say what to fix."), arguments)
    home = frame.folder("the doctor looks at the machine it runs on", "--at FOLDER, or: falaj status --at URL")
    from falaj.platform import load_settings

    settings = load_settings(home)
    return put_findings([*machine(settings), *house(settings)], BAD, as_json=frame.as_json)


def machine(settings: Settings) -> Iterator[Finding]:
    """What can be seen without opening anything."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding(
        "python",
        GOOD if sys.version_info >= (3, 11) else BAD,
        version,
        "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer",
    )
    home = Path(settings.home)
    yield _space(home)
    yield from _permissions(home)
    for url in (settings.store, settings.blobs, settings.secrets, *settings.identity.split(",")):
        scheme = url.strip().partition(":")[0]
        if scheme in NEEDS and find_spec(NEEDS[scheme][0]) is None:
            yield Finding(
                "extras", BAD, f"{scheme}: needs {NEEDS[scheme][0]}", f"pip install 'falaj[{NEEDS[scheme][1]}]'"
            )
    yield from _certificates(settings, home)
    if settings.oidc.issuer:
        yield _provider(settings)
    yield _sandbox(settings)
    yield _limits()


def house(settings: Settings) -> Iterator[Finding]:
    """Backends first; then, where a platform of this version stands on them, what only the platform itself knows."""
    from falaj.cli.doctor_backends import examine_backends, is_current
    from falaj.platform import House, Platform

    examined = list(examine_backends(settings))
    yield from examined
    if not is_current(examined):
        return
    try:
        opened = House(settings)
    except FalajError as error:
        yield Finding("platform", BAD, error.message, error.hint)
        return
    try:
        for dependency in opened.dependencies.health():
            if not dependency.answers:
                yield Finding(dependency.name, BAD, dependency.problem, dependency.hint)
            elif dependency.name not in {finding.check for finding in examined}:
                yield Finding(dependency.name, GOOD, "answers")
        if opened.fence.read() is not None:
            found = "FENCED: a restored copy, which starts no job and reaches no cluster, hook or agent"
            yield Finding("copy", BAD, found, "once the old installation is gone: falaj restore --activate")
        here = Platform(opened, opened.owner())
        for check in (_sealing, _unfinished, _clock, _other_clocks, _trusted_time, _unsandboxed):
            yield _tried(check, here)
    finally:
        opened.close()


def _tried(check: Callable[[Any], Finding], here: Any) -> Finding:
    try:
        return check(here)
    except FalajError as error:
        return Finding(check.__name__.strip("_"), WARN, error.message, error.hint)


def _sealing(here: Any) -> Finding:
    newest = here.audit.checkpoints(limit=1)
    if not newest:
        return Finding(
            "sealing", WARN, "no event is under a checkpoint yet", "falaj up seals by itself; or: falaj audit seal"
        )
    age = time.time() - newest[0].at
    late = age > max(3600.0, 60 * here.house.settings.seal_s)
    return Finding(
        "sealing",
        WARN if late else GOOD,
        f"{newest[0].size} events sealed, {age:.0f} s ago",
        "start: falaj up; or: falaj audit seal" if late else "",
    )


def _unfinished(here: Any) -> Finding:
    begun = here.audit.unfinished()
    shown = f"{len(begun)} acts were begun and have no outcome" if begun else "none"
    return Finding(
        "unfinished acts",
        WARN if begun else GOOD,
        shown,
        "falaj audit unfinished shows them; repeat each call" if begun else "",
    )


def _clock(here: Any) -> Finding:
    """A clock that went back would date new events before old ones."""
    newest = here.audit.log(limit=1).entries
    ahead = newest[0].at - time.time() if newest else 0.0
    if ahead > 5:
        return Finding(
            "clock", BAD, f"the log is {ahead:.0f} s ahead of this machine", "set the clock: timedatectl set-ntp true"
        )
    return Finding("clock", GOOD, time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime()))


def _other_clocks(here: Any) -> Finding:
    """Clocks of the machines we stand on that differ from ours."""
    readings = here.audit.clocks()
    wrong = [reading for reading in readings if not reading.within_limit]
    texts = [f"{each.source} {each.failed or f'{each.skew_s:+.1f} s'}" for each in wrong or readings]
    hint = "set the clock: timedatectl set-ntp true" if wrong else ""
    return Finding("other clocks", BAD if wrong else GOOD, "; ".join(texts) or "none to compare with", hint)


def _trusted_time(here: Any) -> Finding:
    """Whether an RFC 3161 server dates the log, and when it last did."""
    settings = here.house.settings.timestamp
    if not settings.server:
        return Finding("trusted time", GOOD, "no timestamp server is set: times are this machine's")
    stamps = here.audit.timestamps(limit=1)
    late = not stamps or time.time() - stamps[0].at > 3 * settings.every_s
    shown = f"checkpoint {stamps[0].checkpoint} is dated" if stamps else "no checkpoint is dated yet"
    hint = "falaj up asks the server by itself; its log says why it fails" if late else ""
    return Finding("trusted time", WARN if late else GOOD, shown, hint)


def _unsandboxed(here: Any) -> Finding:
    """Whose jobs run without a sandbox, on any cluster."""
    from falaj.fleet.sandbox import UNSANDBOXED

    exposed = {cluster.name: cluster.unsandboxed for cluster in here.clusters.list() if cluster.unsandboxed}
    if not exposed:
        return Finding("jobs", GOOD, "all jobs run in a sandbox")
    words = "; ".join(f"{name}: {UNSANDBOXED[who]}" for name, who in exposed.items())
    hint = 'set sandbox = "required" to sandbox all jobs and refuse clusters that cannot; see docs/sandbox.md'
    return Finding("jobs", RISK, words, hint)


def _space(home: Path) -> Finding:
    folder = next(p for p in (home, *home.parents) if p.exists())
    free = shutil.disk_usage(folder).free
    state = BAD if free < SPACE_BAD else WARN if free < SPACE_LOW else GOOD
    return Finding("disk", state, f"{free / 2**30:.1f} GiB free", "" if state == GOOD else "make room, or move `home`")


def _permissions(home: Path) -> Iterator[Finding]:
    """Nobody else may read the folder, the keys or the authority's key."""
    secret = [home, home / "keys", home / "tls", *(home / "keys").glob("**/*"), *(home / "tls").glob("*.key")]
    exposed = [path for path in secret if path.exists() and path.stat().st_mode & 0o077]
    for path in exposed:
        yield Finding("permissions", BAD, f"{path} is open to others", f"chmod go-rwx {path}")
    if home.exists() and not exposed:
        yield Finding("permissions", GOOD, "only you can read home, keys and certificates' keys")


def _certificates(settings: Settings, home: Path) -> Iterator[Finding]:
    own = home / "tls" / "server.pem"
    path = settings.tls.cert or (str(own) if own.exists() else "")
    if not path:
        return
    from falaj.api.tls import expires_at

    try:
        days = (expires_at(path) - time.time()) / 86400
    except FalajError as error:
        yield Finding("certificate", BAD, error.message, error.hint)
        return
    state = BAD if days < 0 else WARN if days < 14 else GOOD
    yield Finding(
        "certificate",
        state,
        f"good for {days:.0f} days",
        "" if state == GOOD else "restart with --tls, or renew your own",
    )


def _sandbox(settings: Settings) -> Finding:
    """What this machine enforces of the cage that attempts run in."""
    import tempfile

    from falaj.fleet.sandbox import in_words
    from falaj.plugins import plugin

    with tempfile.TemporaryDirectory(prefix="falaj-doctor-") as folder:
        try:
            executor = plugin("executor", "process")("process:", {"folder": folder, "sandbox": settings.sandbox})
        except FalajError as error:
            return Finding("sandbox", BAD, error.message, error.hint)
        enforced = executor.enforced()
        executor.close()
    fix = "" if all(enforced.values()) else "see docs/sandbox.md for what the kernel must allow"
    if settings.sandbox == "off":
        return Finding("sandbox", WARN, "off: attempts run as the platform does", 'set sandbox = "best"')
    return Finding("sandbox", WARN if fix else GOOD, in_words(enforced), fix)


def _limits() -> Finding:
    """What holds attempts on this machine to the memory and CPU they asked for."""
    import tempfile

    from falaj.plugins import plugin

    with tempfile.TemporaryDirectory(prefix="falaj-doctor-") as folder:
        executor = plugin("executor", "process")("process:", {"folder": folder})
        kind = executor.capacity()[0].labels["limits"]
        executor.close()
    if kind == "cgroup":
        return Finding("limits", GOOD, "memory and CPU: a cgroup for each slot")
    text = "memory: watched by the launcher; disk and log: bounded; CPU: NOT enforced below whole cores"
    return Finding("limits", WARN, text, "delegate a cgroup (systemd: Delegate=yes), see docs/sandbox.md")


def _provider(settings: Settings) -> Finding:
    from falaj.plugins import plugin

    provider = plugin("identity", "oidc")("oidc:", settings.oidc)
    try:
        provider.begin_login("http://127.0.0.1:1/callback", time.time())
    except FalajError as error:
        return Finding("identity provider", BAD, error.message, error.hint)
    finally:
        provider.close()
    return Finding("identity provider", GOOD, f"{settings.oidc.issuer} answers")
