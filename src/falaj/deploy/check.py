"""Checking: what runs, held against what was rendered. Every finding says what was found and what to do."""

import hashlib
import json
import ssl
import subprocess  # nosec B404 - one fixed program, named by the rendering
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

from falaj.api.tls import client_context, expires_at
from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.core.finding import Finding
from falaj.core.own_environment import own_environment
from falaj.deploy import listeners, settings
from falaj.deploy.render import read_manifest, site_of
from falaj.deploy.site import Site
from falaj.deploy.wire import Answer, Place, addresses, ask

GOOD, LOOK, MISS = "ok", "look", "MISS"
DRILL_DAYS, CERT_DAYS = 8, 14
NEWER = 1.5
"""A backup may be so many times as old as its rhythm says: timers are spread, and backups take time."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is checked: a rendering, and where its deployment answers."""

    folder: Path
    site: Site
    version: str
    settings: str
    files: dict[str, str]
    urls: tuple[str, ...]
    ca: str

    @staticmethod
    def of(folder: Path, urls: tuple[str, ...] = (), ca: str = "") -> "Case":
        """From the rendering's own record; addresses and authority follow from it where none is given."""
        told = read_manifest(folder)
        site = site_of(told)
        files = {str(name): str(value) for name, value in dict(told["files"]).items()}  # type: ignore[call-overload]
        values = site.values
        own = Path(f"{values['prefix']}{settings.WRITABLE}/tls/ca.pem")
        port = f":{values['port']}" if site.profile == "smb" else ""
        ca = ca or (str(own) if site.profile == "smb" and own.is_file() else "")
        return Case(
            folder,
            site,
            str(told["version"]),
            str(told["settings"]),
            files,
            urls or (f"https://{values['host']}{port}",),
            ca,
        )

    @property
    def prefix(self) -> Path:
        """The root of the machine, or of the trial."""
        return Path(self.site.values["prefix"] or "/")

    @property
    def installed(self) -> bool:
        """True on the machine itself; elsewhere only what answers can be looked at."""
        return (self.prefix / "etc/falaj/falaj.toml").exists()


def findings(case: Case) -> Iterator[Finding]:
    """Everything that can be seen from here."""
    yield _rendering(case)
    for url in case.urls:
        yield from _answering(case, Place.of(url))
    if not case.installed:
        yield Finding(
            "machine", LOOK, "not deployed on this machine; only what answers was looked at", "run it there, too"
        )
        return
    yield _program(case)
    yield _settings(case)
    yield from _copies(case)
    yield from _permissions(case)
    yield from _listeners(case)
    yield from _backups(case)


def pulse(url: str, ca: str = "") -> None:
    """Unavailable unless the address says that it is well."""
    place = Place.of(url)
    answer = ask(place, "/health", client_context(ca) if place.secure else None)
    if answer.status != 200:
        raise Unavailable(f"{url} answers {answer.status}", "look at its log")


def _rendering(case: Case) -> Finding:
    changed = [name for name, digest in case.files.items() if _digest(case.folder / name) != digest]
    if changed:
        return Finding("rendering", LOOK, f"edited since: {', '.join(changed[:5])}", "render again, with --set")
    return Finding("rendering", GOOD, f"{len(case.files)} files as they were made")


def _answering(case: Case, place: Place) -> Iterator[Finding]:
    """What an address tells: every replica behind it, their versions and clocks, and what it refuses."""
    if not place.secure:
        yield Finding("tls", MISS, f"{place.name} is asked without TLS", "give https://")
        return
    try:
        context, behind = client_context(case.ca), addresses(place)
    except FalajError as error:
        yield Finding("replicas", MISS, error.message, error.hint)
        return
    answered = 0
    for address in behind:
        try:
            health, told = ask(place, "/health", context, address), ask(place, "/v1/openapi.json", context, address)
        except Unavailable as error:
            yield Finding("replicas", MISS, f"{address}: {error.message}", error.hint)
            continue
        answered += health.status == 200
        yield _version(case, address, told)
        yield _clock(case, address, health)
    yield Finding(
        "replicas", GOOD if answered == len(behind) else MISS, f"{answered} of {len(behind)} at {place.name} are well"
    )
    yield _old_tls(place)
    yield _no_tls(place)


def _version(case: Case, address: str, told: Answer) -> Finding:
    try:
        version = str(json.loads(told.body)["info"]["version"])
    except (ValueError, KeyError, TypeError):
        return Finding("version", MISS, f"{address} does not tell its version", "is it Falaj?")
    same = version == case.version
    return Finding(
        "version", GOOD if same else MISS, f"{address} runs {version}", "" if same else f"deploy {case.version}"
    )


def _clock(case: Case, address: str, health: Answer) -> Finding:
    """The Date header has whole seconds, so half of one is added back."""
    try:
        skew = parsedate_to_datetime(health.date).timestamp() + 0.5 - health.at
    except (TypeError, ValueError):
        return Finding("clock", LOOK, f"{address} does not tell its time")
    good = abs(skew) <= float(case.site.values["skew_s"]) + 1.0
    return Finding(
        "clock", GOOD if good else MISS, f"{address} is {skew:+.0f} s away", "" if good else "set the clocks by NTP"
    )


def _old_tls(place: Place) -> Finding:
    """A door that lets an older TLS in would be listed here; it need not be trusted to be asked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    try:
        ask(place, "/health", context)
    except Unavailable:
        return Finding("tls", GOOD, "TLS 1.3 only: 1.2 is refused")
    return Finding(
        "tls", MISS, f"{place.name} speaks TLS 1.2", "turn on TLS passthrough before it, or end TLS 1.2 there"
    )


def _no_tls(place: Place) -> Finding:
    try:
        ask(Place(False, place.host, place.port), "/health", None)
    except Unavailable:
        return Finding("plain http", GOOD, "refused")
    return Finding("plain http", MISS, f"{place.name} answers without TLS", "set tls.cert and tls.key")


def _program(case: Case) -> Finding:
    program = case.prefix / "opt/falaj/bin/falaj"
    try:
        completed = subprocess.run(  # noqa: S603 # nosec B603 - no shell, no argument from outside
            [program, "--version"], env=own_environment(), capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("program", MISS, f"{program} cannot be run: {type(error).__name__}", "apply the playbook")
    found, wanted = completed.stdout.strip(), f"falaj {case.version}"
    return Finding(
        "program",
        GOOD if found == wanted else MISS,
        found or "tells nothing",
        "" if found == wanted else "apply the playbook",
    )


def _settings(case: Case) -> Finding:
    path = case.prefix / "etc/falaj/falaj.toml"
    try:
        found = settings.digest_of(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, Invalid) as error:
        return Finding("settings", MISS, f"falaj.toml cannot be read: {error}", "apply the playbook")
    if found != case.settings:
        return Finding(
            "settings",
            MISS,
            f"{found[:12]}, and {case.settings[:12]} was rendered",
            "apply the playbook, or render what is meant",
        )
    if said := _said_elsewhere(case):
        return Finding(
            "settings", LOOK, f"the environment says otherwise: {', '.join(said)}", "say it by --set instead"
        )
    began = listeners.began(case.prefix / "opt/falaj")
    if began and path.stat().st_mtime > began + 1.0:
        return Finding("settings", LOOK, "written after the platform began", "systemctl restart falaj")
    return Finding("settings", GOOD, found[:12])


def _said_elsewhere(case: Case) -> list[str]:
    """Settings that both the file and the environment of the unit give: the environment wins, and nobody would see."""
    try:
        lines = (case.prefix / "etc/falaj/secrets.env").read_text(encoding="utf-8").splitlines()
        file = tomllib.loads((case.prefix / "etc/falaj/falaj.toml").read_text(encoding="utf-8"))
    except OSError:
        return []
    names = {line.partition("=")[0].strip() for line in lines}
    return sorted(name for name in file if f"FALAJ_{name.upper()}" in names)


def _copies(case: Case) -> Iterator[Finding]:
    """Units and scripts on the machine are the rendered ones."""
    for name, digest in case.files.items():
        head, _, tail = name.partition("/")
        there = {"systemd": "etc/systemd/system", "libexec": "opt/falaj/libexec"}.get(head)
        elsewhere = tail == "falaj-agent.service" and not (case.prefix / str(there) / tail).exists()
        if there and not elsewhere and _digest(case.prefix / there / tail) != digest:
            yield Finding("installed files", MISS, f"/{there}/{tail} is not the rendered one", "apply the playbook")


def _permissions(case: Case) -> Iterator[Finding]:
    """Nobody else reads what is secret, and nobody else writes what is run."""
    home, etc = case.prefix / "var/lib/falaj", case.prefix / "etc/falaj"
    private = [home, home / "keys", home / "tls", etc / "secrets.env", case.prefix / "var/backups/falaj"]
    run = [etc, etc / "falaj.toml", case.prefix / "opt/falaj/bin", *(case.prefix / "opt/falaj/libexec").glob("*")]
    run += (case.prefix / "etc/systemd/system").glob("falaj*")
    wrong = [(path, mask) for paths, mask in ((private, 0o077), (run, 0o022)) for path in paths if _open(path, mask)]
    for path, mask in wrong:
        what, fix = ("read", "go-rwx") if mask == 0o077 else ("changed", "go-w")
        yield Finding("permissions", MISS, f"{path} can be {what} by others", f"chmod {fix} {path}")
    if not wrong:
        yield Finding("permissions", GOOD, "secrets are read, and programs changed, by their owner only")
    cert = home / "tls/server.pem" if case.site.profile == "smb" else etc / "tls/tls.crt"
    if cert.exists():
        days = (expires_at(str(cert)) - time.time()) / 86400
        state = MISS if days < 0 else LOOK if days < CERT_DAYS else GOOD
        yield Finding("certificate", state, f"good for {days:.0f} days", "" if state == GOOD else "renew it")


def _listeners(case: Case) -> Iterator[Finding]:
    values = case.site.values
    wanted = {int(values[name].rpartition(":")[2]) for name in ("listen", "gateway", "gateway_grpc")}
    found = listeners.of_program(case.prefix / "opt/falaj")
    if found is None:
        yield Finding(
            "listeners", LOOK, "the processes of the platform cannot be seen", "run it as root, or as its user"
        )
        return
    strange = sorted(f"{one.address}:{one.port}" for one in found if one.port not in wanted and not one.loopback)
    if strange:
        yield Finding(
            "listeners", MISS, f"open to others and not rendered: {', '.join(strange)}", "close them, or render them"
        )
    elif int(values["port"]) not in {one.port for one in found}:
        yield Finding(
            "listeners", MISS, f"nothing of the platform listens on {values['port']}", "systemctl start falaj"
        )
    else:
        yield Finding(
            "listeners",
            GOOD,
            ", ".join(sorted({f"{one.address}:{one.port}" for one in found if not one.loopback})) or "loopback only",
        )


def _backups(case: Case) -> Iterator[Finding]:
    folder = case.prefix / "var/backups/falaj"
    try:
        made = [path.stat() for path in folder.glob("objects/*/backups~*")]
        drill = (folder / "drill.json").stat().st_mtime if (folder / "drill.json").exists() else 0.0
    except OSError:
        yield Finding("backups", LOOK, f"{folder} cannot be read", "run it as root, or as the platform's user")
        return
    most_s = NEWER * 3600 * int(case.site.values["backup_hours"])
    newest = max((one.st_mtime for one in made if one.st_size), default=0.0)
    age_s = time.time() - newest
    if age_s > most_s:
        found = f"the newest is {age_s / 3600:.0f} h old" if newest else "there is none"
        yield Finding("backups", MISS, found, "systemctl start falaj-backup, and look why its timer did not")
    else:
        yield Finding("backups", GOOD, f"{len(made)}, the newest {age_s / 60:.0f} min old")
    fresh = time.time() - drill < DRILL_DAYS * 86400
    told = "a restore went well this week" if fresh else "no restore was tried this week"
    yield Finding("restore drill", GOOD if fresh else LOOK, told, "" if fresh else "systemctl start falaj-drill")


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _open(path: Path, mask: int) -> bool:
    return path.exists() and bool(path.stat().st_mode & mask)
