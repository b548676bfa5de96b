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

from falaj.api.tls import create_client_context, read_expiry
from falaj.core.check_result import CheckResult
from falaj.core.errors import FalajError, Invalid, Unavailable
from falaj.core.minimal_environment import get_minimal_environment
from falaj.deploy import listening_sockets, site_settings
from falaj.deploy.http_probe import ProbeResponse, ServerAddress, fetch_response, resolve_addresses
from falaj.deploy.rendering import read_manifest, read_site
from falaj.deploy.site import DeploymentSite

STATE_OK, STATE_WARN, STATE_BAD = "ok", "look", "MISS"
MAX_DRILL_AGE_DAYS, CERTIFICATE_WARN_DAYS = 8, 14
MAX_BACKUP_AGE_FACTOR = 1.5
"""A backup may be so many times as old as its rhythm says: timers are spread, and backups take time."""


@dataclass(frozen=True, slots=True)
class DeploymentCase:
    """What is checked: a rendering, and where its deployment answers."""

    folder: Path
    site: DeploymentSite
    version: str
    settings: str
    files: dict[str, str]
    urls: tuple[str, ...]
    ca: str

    @staticmethod
    def of(folder: Path, urls: tuple[str, ...] = (), ca_file: str = "") -> "DeploymentCase":
        """From the rendering's own record; addresses and authority follow from it where none is given."""
        manifest = read_manifest(folder)
        site = read_site(manifest)
        digest_by_file = {str(name): str(value) for name, value in dict(manifest["files"]).items()}  # type: ignore[call-overload]
        values = site.values
        own_ca = Path(f"{values['prefix']}{site_settings.DATA_FOLDER}/tls/ca.pem")
        port = f":{values['port']}" if site.profile == "smb" else ""
        ca_file = ca_file or (str(own_ca) if site.profile == "smb" and own_ca.is_file() else "")
        return DeploymentCase(
            folder,
            site,
            str(manifest["version"]),
            str(manifest["settings"]),
            digest_by_file,
            urls or (f"https://{values['host']}{port}",),
            ca_file,
        )

    @property
    def prefix(self) -> Path:
        """The root of the machine, or of the trial."""
        return Path(self.site.values["prefix"] or "/")

    @property
    def installed(self) -> bool:
        """True on the machine itself; elsewhere only what answers can be looked at."""
        return (self.prefix / "etc/falaj/falaj.toml").exists()


def check_deployment(case: DeploymentCase) -> Iterator[CheckResult]:
    """Everything that can be seen from here."""
    yield _check_rendering(case)
    for url in case.urls:
        yield from _check_addresses(case, ServerAddress.of(url))
    if not case.installed:
        yield CheckResult(
            "machine", STATE_WARN, "not deployed on this machine; only what answers was looked at", "run it there, too"
        )
        return
    yield _check_program(case)
    yield _check_settings(case)
    yield from _check_installed_files(case)
    yield from _check_permissions(case)
    yield from _check_listeners(case)
    yield from _check_backups(case)


def require_healthy(url: str, ca_file: str = "") -> None:
    """Unavailable unless the address says that it is well."""
    address = ServerAddress.of(url)
    response = fetch_response(address, "/health", create_client_context(ca_file) if address.secure else None)
    if response.status != 200:
        raise Unavailable(f"{url} answers {response.status}", "look at its log")


def _check_rendering(case: DeploymentCase) -> CheckResult:
    changed = [name for name, digest in case.files.items() if _hash_file(case.folder / name) != digest]
    if changed:
        return CheckResult(
            "rendering", STATE_WARN, f"edited since: {', '.join(changed[:5])}", "render again, with --set"
        )
    return CheckResult("rendering", STATE_OK, f"{len(case.files)} files as they were made")


def _check_addresses(case: DeploymentCase, server_address: ServerAddress) -> Iterator[CheckResult]:
    """What an address tells: every replica behind it, their versions and clocks, and what it refuses."""
    if not server_address.secure:
        yield CheckResult("tls", STATE_BAD, f"{server_address.name} is asked without TLS", "give https://")
        return
    try:
        ssl_context, addresses_behind = create_client_context(case.ca), resolve_addresses(server_address)
    except FalajError as error:
        yield CheckResult("replicas", STATE_BAD, error.message, error.hint)
        return
    healthy_count = 0
    for address in addresses_behind:
        try:
            health, openapi_response = (
                fetch_response(server_address, "/health", ssl_context, address),
                fetch_response(server_address, "/v1/openapi.json", ssl_context, address),
            )
        except Unavailable as error:
            yield CheckResult("replicas", STATE_BAD, f"{address}: {error.message}", error.hint)
            continue
        healthy_count += health.status == 200
        yield _check_version(case, address, openapi_response)
        yield _check_clock(case, address, health)
    yield CheckResult(
        "replicas",
        STATE_OK if healthy_count == len(addresses_behind) else STATE_BAD,
        f"{healthy_count} of {len(addresses_behind)} at {server_address.name} are well",
    )
    yield _check_old_tls(server_address)
    yield _check_plain_http(server_address)


def _check_version(case: DeploymentCase, address: str, openapi_response: ProbeResponse) -> CheckResult:
    try:
        version = str(json.loads(openapi_response.body)["info"]["version"])
    except (ValueError, KeyError, TypeError):
        return CheckResult("version", STATE_BAD, f"{address} does not tell its version", "is it Falaj?")
    is_same = version == case.version
    return CheckResult(
        "version",
        STATE_OK if is_same else STATE_BAD,
        f"{address} runs {version}",
        "" if is_same else f"deploy {case.version}",
    )


def _check_clock(case: DeploymentCase, address: str, health: ProbeResponse) -> CheckResult:
    """The Date header has whole seconds, so half of one is added back."""
    try:
        skew_s = parsedate_to_datetime(health.date).timestamp() + 0.5 - health.at
    except (TypeError, ValueError):
        return CheckResult("clock", STATE_WARN, f"{address} does not tell its time")
    is_good = abs(skew_s) <= float(case.site.values["skew_s"]) + 1.0
    return CheckResult(
        "clock",
        STATE_OK if is_good else STATE_BAD,
        f"{address} is {skew_s:+.0f} s away",
        "" if is_good else "set the clocks by NTP",
    )


def _check_old_tls(server_address: ServerAddress) -> CheckResult:
    """A door that lets an older TLS in would be listed here; it need not be trusted to be asked."""
    ssl_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ssl_context.check_hostname, ssl_context.verify_mode = False, ssl.CERT_NONE
    ssl_context.minimum_version, ssl_context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    try:
        fetch_response(server_address, "/health", ssl_context)
    except Unavailable:
        return CheckResult("tls", STATE_OK, "TLS 1.3 only: 1.2 is refused")
    return CheckResult(
        "tls",
        STATE_BAD,
        f"{server_address.name} speaks TLS 1.2",
        "turn on TLS passthrough before it, or end TLS 1.2 there",
    )


def _check_plain_http(server_address: ServerAddress) -> CheckResult:
    try:
        fetch_response(ServerAddress(False, server_address.host, server_address.port), "/health", None)
    except Unavailable:
        return CheckResult("plain http", STATE_OK, "refused")
    return CheckResult(
        "plain http", STATE_BAD, f"{server_address.name} answers without TLS", "set tls.cert and tls.key"
    )


def _check_program(case: DeploymentCase) -> CheckResult:
    program = case.prefix / "opt/falaj/bin/falaj"
    try:
        completed = subprocess.run(  # noqa: S603 # nosec B603 - no shell, no argument from outside
            [program, "--version"],
            env=get_minimal_environment(),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return CheckResult(
            "program", STATE_BAD, f"{program} cannot be run: {type(error).__name__}", "apply the playbook"
        )
    reported_version, expected_version = completed.stdout.strip(), f"falaj {case.version}"
    return CheckResult(
        "program",
        STATE_OK if reported_version == expected_version else STATE_BAD,
        reported_version or "tells nothing",
        "" if reported_version == expected_version else "apply the playbook",
    )


def _check_settings(case: DeploymentCase) -> CheckResult:
    path = case.prefix / "etc/falaj/falaj.toml"
    try:
        found_digest = site_settings.compute_file_digest(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, Invalid) as error:
        return CheckResult("settings", STATE_BAD, f"falaj.toml cannot be read: {error}", "apply the playbook")
    if found_digest != case.settings:
        return CheckResult(
            "settings",
            STATE_BAD,
            f"{found_digest[:12]}, and {case.settings[:12]} was rendered",
            "apply the playbook, or render what is meant",
        )
    if overridden := _list_overridden_settings(case):
        return CheckResult(
            "settings",
            STATE_WARN,
            f"the environment says otherwise: {', '.join(overridden)}",
            "say it by --set instead",
        )
    started_at = listening_sockets.get_start_time(case.prefix / "opt/falaj")
    if started_at and path.stat().st_mtime > started_at + 1.0:
        return CheckResult("settings", STATE_WARN, "written after the platform began", "systemctl restart falaj")
    return CheckResult("settings", STATE_OK, found_digest[:12])


def _list_overridden_settings(case: DeploymentCase) -> list[str]:
    """Settings that both the file and the environment of the unit give: the environment wins, and nobody would see."""
    try:
        lines = (case.prefix / "etc/falaj/secrets.env").read_text(encoding="utf-8").splitlines()
        settings_tree = tomllib.loads((case.prefix / "etc/falaj/falaj.toml").read_text(encoding="utf-8"))
    except OSError:
        return []
    names = {line.partition("=")[0].strip() for line in lines}
    return sorted(name for name in settings_tree if f"FALAJ_{name.upper()}" in names)


def _check_installed_files(case: DeploymentCase) -> Iterator[CheckResult]:
    """Units and scripts on the machine are the rendered ones."""
    for name, digest in case.files.items():
        folder_name, _, file_name = name.partition("/")
        installed_folder = {"systemd": "etc/systemd/system", "libexec": "opt/falaj/libexec"}.get(folder_name)
        is_elsewhere = (
            file_name == "falaj-agent.service" and not (case.prefix / str(installed_folder) / file_name).exists()
        )
        if installed_folder and not is_elsewhere and _hash_file(case.prefix / installed_folder / file_name) != digest:
            yield CheckResult(
                "installed files",
                STATE_BAD,
                f"/{installed_folder}/{file_name} is not the rendered one",
                "apply the playbook",
            )


def _check_permissions(case: DeploymentCase) -> Iterator[CheckResult]:
    """Nobody else reads what is secret, and nobody else writes what is run."""
    home_folder, config_folder = case.prefix / "var/lib/falaj", case.prefix / "etc/falaj"
    private_paths = [
        home_folder,
        home_folder / "keys",
        home_folder / "tls",
        config_folder / "secrets.env",
        case.prefix / "var/backups/falaj",
    ]
    executed_paths = [
        config_folder,
        config_folder / "falaj.toml",
        case.prefix / "opt/falaj/bin",
        *(case.prefix / "opt/falaj/libexec").glob("*"),
    ]
    executed_paths += (case.prefix / "etc/systemd/system").glob("falaj*")
    exposed_paths = [
        (path, mask)
        for paths, mask in ((private_paths, 0o077), (executed_paths, 0o022))
        for path in paths
        if _has_open_mode(path, mask)
    ]
    for path, mask in exposed_paths:
        access, mode_change = ("read", "go-rwx") if mask == 0o077 else ("changed", "go-w")
        yield CheckResult("permissions", STATE_BAD, f"{path} can be {access} by others", f"chmod {mode_change} {path}")
    if not exposed_paths:
        yield CheckResult("permissions", STATE_OK, "secrets are read, and programs changed, by their owner only")
    certificate = home_folder / "tls/server.pem" if case.site.profile == "smb" else config_folder / "tls/tls.crt"
    if certificate.exists():
        days = (read_expiry(str(certificate)) - time.time()) / 86400
        state = STATE_BAD if days < 0 else STATE_WARN if days < CERTIFICATE_WARN_DAYS else STATE_OK
        yield CheckResult("certificate", state, f"good for {days:.0f} days", "" if state == STATE_OK else "renew it")


def _check_listeners(case: DeploymentCase) -> Iterator[CheckResult]:
    values = case.site.values
    expected_ports = {int(values[name].rpartition(":")[2]) for name in ("listen", "gateway", "gateway_grpc")}
    open_sockets = listening_sockets.find_program_sockets(case.prefix / "opt/falaj")
    if open_sockets is None:
        yield CheckResult(
            "listeners", STATE_WARN, "the processes of the platform cannot be seen", "run it as root, or as its user"
        )
        return
    unexpected = sorted(
        f"{open_socket.address}:{open_socket.port}"
        for open_socket in open_sockets
        if open_socket.port not in expected_ports and not open_socket.loopback
    )
    if unexpected:
        yield CheckResult(
            "listeners",
            STATE_BAD,
            f"open to others and not rendered: {', '.join(unexpected)}",
            "close them, or render them",
        )
    elif int(values["port"]) not in {open_socket.port for open_socket in open_sockets}:
        yield CheckResult(
            "listeners", STATE_BAD, f"nothing of the platform listens on {values['port']}", "systemctl start falaj"
        )
    else:
        yield CheckResult(
            "listeners",
            STATE_OK,
            ", ".join(
                sorted(
                    {
                        f"{open_socket.address}:{open_socket.port}"
                        for open_socket in open_sockets
                        if not open_socket.loopback
                    }
                )
            )
            or "loopback only",
        )


def _check_backups(case: DeploymentCase) -> Iterator[CheckResult]:
    folder = case.prefix / "var/backups/falaj"
    try:
        backup_files = [path.stat() for path in folder.glob("objects/*/backups~*")]
        drill_at = (folder / "drill.json").stat().st_mtime if (folder / "drill.json").exists() else 0.0
    except OSError:
        yield CheckResult(
            "backups", STATE_WARN, f"{folder} cannot be read", "run it as root, or as the platform's user"
        )
        return
    max_age_s = MAX_BACKUP_AGE_FACTOR * 3600 * int(case.site.values["backup_hours"])
    newest_at = max((backup_file.st_mtime for backup_file in backup_files if backup_file.st_size), default=0.0)
    age_s = time.time() - newest_at
    if age_s > max_age_s:
        problem = f"the newest is {age_s / 3600:.0f} h old" if newest_at else "there is none"
        yield CheckResult("backups", STATE_BAD, problem, "systemctl start falaj-backup, and look why its timer did not")
    else:
        yield CheckResult("backups", STATE_OK, f"{len(backup_files)}, the newest {age_s / 60:.0f} min old")
    is_recent = time.time() - drill_at < MAX_DRILL_AGE_DAYS * 86400
    drill_text = "a restore went well this week" if is_recent else "no restore was tried this week"
    yield CheckResult(
        "restore drill",
        STATE_OK if is_recent else STATE_WARN,
        drill_text,
        "" if is_recent else "systemctl start falaj-drill",
    )


def _hash_file(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _has_open_mode(path: Path, mask: int) -> bool:
    return path.exists() and bool(path.stat().st_mode & mask)
