"""Settings: one frozen tree, read once at a door from falaj.toml, then FALAJ_*, then keyword arguments."""

import typing
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from functools import cache
from typing import Any

from falaj.core.data import dataclass
from falaj.core.errors import Invalid


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Certificates. Needed on any address but loopback."""

    cert: str = ""
    key: str = ""
    ca: str = ""
    """Who signs the certificates of replicas and workers; with it set, `mutual` may be on."""
    mutual: bool = False
    """Ask every caller for a certificate of that authority as well as a token."""


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """The enterprise's identity provider."""

    issuer: str = ""
    client: str = ""
    audience: str = "falaj"
    algorithms: tuple[str, ...] = ("EdDSA", "ES256", "RS256", "PS256")
    tenant: str = ""
    """The tenant of its people, or a claim written as `claim:name`."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Group claim to role, or to role@project: { "ml-team" = "data-scientist", "falaj-*-view" = "viewer@*" }."""
    jurisdiction: str = ""
    """Where its people sit, or a claim written as `claim:name`."""
    groups: str = "groups"
    """The claim that lists groups."""
    projects: str = "*"
    """The projects its people may touch, or a claim written as `claim:name`."""
    services: tuple[str, ...] = ()
    """Clients, beside `client`, whose tokens are accepted: services that sign in with their own secret."""
    scope: str = "falaj"
    """What to ask the provider for, beside `openid` and the groups."""
    strong: tuple[str, ...] = ("mfa", "hwk", "phr", "phrh")
    """Values of `acr` or `amr` that prove more than one factor."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one caller may take."""

    body_bytes: int = 4_194_304
    stream_bytes: int = 1_099_511_627_776
    body_depth: int = 32
    timeout_s: float = 60.0
    requests_per_s: float = 200.0
    burst: int = 400
    denials_per_s: float = 20.0
    """Refusals of one caller at one address that are recorded one by one; more are recorded as their number."""
    connections: int = 4096
    """Connections to the API that may be open."""
    connections_per_peer: int = 1024
    """Of these, how many of one address (IPv6: of one /64 network); 0 behind a reverse proxy, the only peer."""


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Where events may be sent to."""

    private: tuple[str, ...] = ()
    """Networks beside the open internet, for example 10.20.0.0/16; with 127.0.0.0/8 also by plain http."""
    ca: str = ""
    """A file of authorities whose certificates receivers may have, beside the usual ones."""


@dataclass(frozen=True, slots=True)
class MailSettings:
    """How mail leaves."""

    server: str = ""
    """smtps://host:465 or smtp://host:587 (which must offer STARTTLS); no mail when empty."""
    sender: str = ""
    user: str = ""
    password: str = ""
    """A reference, secret://house/ZONE/PROJECT/NAME, never the password itself."""


@dataclass(frozen=True, slots=True)
class BackupSettings:
    """Copies of everything, made by the platform itself."""

    to: str = ""
    """Where they go: dir:/…, s3://bucket/prefix, as blobs are addressed; nowhere when empty."""
    every_h: float = 24.0
    keep: int = 14
    """How many are kept."""
    zone: str = ""
    """The zone that place stands in; our own when empty. In another goes only what may lie there."""
    bytes: bool = True
    """Whether the bytes go too; not where the blob store is kept safe by its own means."""


@dataclass(frozen=True, slots=True)
class TimestampSettings:
    """Trusted time for the audit log: an RFC 3161 server dates checkpoints."""

    server: str = ""
    """https://… of the time-stamping server; none is asked when empty. Needs the extra `timestamp`."""
    ca: str = ""
    """A PEM file of the authorities that its certificate chain must end in."""
    every_s: float = 3600.0
    """Seconds between two requests for the newest checkpoint of each log."""
    max_skew_s: float = 300.0
    """A timestamp whose time differs more from our clock is refused."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the house needs to know before it stands. At scale it is a handful of URLs."""

    home: str = "~/.falaj"
    """The folder of everything embedded."""
    installation: str = "falaj"
    """What this installation calls itself in the audit log's checkpoints."""
    zone: str = "home"
    """The legal place this process stands in."""
    jurisdiction: str = "AE"
    """The jurisdiction of the first zone, made at first start; more zones are declared with `falaj zones add`."""
    store: str = "sqlite:{home}/ledger.db"
    blobs: str = "dir:{home}/blobs"
    cache: str = ""
    """A folder on a local disk that keeps what was last read from far stores, sealed as it lies there."""
    cache_bytes: int = 21_474_836_480
    series: str = ""
    """Where measurements lie; when empty, in the ledger's own PostgreSQL, or else in a file beside it."""
    online: str = "lmdb:{home}/online"
    """Where the newest features lie: a file of this machine, or redis://… that replicas share."""
    identity: str = "local:"
    """Providers, separated by commas, asked in order."""
    federation: tuple[str, ...] = ()
    """Issuers whose tokens tenants may let their build systems exchange. We call no address that a tenant names."""
    registries: Mapping[str, str] = field(default_factory=dict)
    """Where OCI registries stand, for example { "harbor.bank.example" = "AE" }: who pushes there need not say so."""
    secrets: str = "file:{home}/keys"
    step_up: bool = False
    """Demand more than one factor of people who approve, govern, erase, or read what is sensitive."""
    listen: str = "127.0.0.1:8470"
    drain_s: float = 0.0
    """How long, when told to stop, it answers on while /ready says that it goes: two probes of a balancer before it."""
    grpc: str = ""
    """Where reads of online features are answered by gRPC, too; nowhere when empty."""
    gateway: str = "127.0.0.1:8471"
    """Where endpoints are called, by HTTP; the gateway runs once there is one. Port 0: any that is free."""
    gateway_grpc: str = "127.0.0.1:8472"
    """Where they are called by gRPC; nowhere when empty."""
    gateway_url: str = ""
    """The address under which callers reach the gateway, where it is another one than it listens on."""
    url: str = ""
    """The address under which attempts on other machines reach this platform."""
    hosts: tuple[str, ...] = ()
    """Host names callers may use, beside the listening address itself."""
    sandbox: str = "best"
    """How attempts of this machine are kept apart: off, best (what it can), or required (wholly, or not at all)."""
    regimes: str = ""
    """A folder of regime profiles of one's own, read after those that are shipped."""
    seal_s: float = 1.0
    schedule: Mapping[str, str] = field(default_factory=dict)
    """How the scheduler is tuned, by the names of its knobs (docs/queues.md); best left alone."""
    """At most so long after an event is it under a signed checkpoint."""
    tls: TlsSettings = field(default_factory=TlsSettings)
    oidc: OidcSettings = field(default_factory=OidcSettings)
    limits: RequestLimits = field(default_factory=RequestLimits)
    hooks: WebhookSettings = field(default_factory=WebhookSettings)
    mail: MailSettings = field(default_factory=MailSettings)
    backup: BackupSettings = field(default_factory=BackupSettings)
    timestamp: TimestampSettings = field(default_factory=TimestampSettings)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where each value that is not the default came from."""

    @property
    def embedded(self) -> bool:
        """True when ledger and keys are files of this machine: no short act waits for another one."""
        return self.store.startswith("sqlite:") and self.secrets.startswith("file:")

    @property
    def series_url(self) -> str:
        """The address of measurements, chosen by where the ledger lies when none is set."""
        default_url = self.store if self.store.startswith("postgresql:") else "sqlite:{home}/series.db"
        return self.at(self.series or default_url)

    def at(self, url: str) -> str:
        """The address with {home} filled in."""
        return url.replace("{home}", self.home)


def read_settings(
    file: Mapping[str, Any], env: Mapping[str, str], overrides: Mapping[str, Any], file_name: str = "falaj.toml"
) -> Settings:
    """Lay the three sources over the defaults, the later one winning, and remember where each value came from."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    setting_types = dict(_list_setting_types(Settings))
    layers: list[tuple[str, dict[str, Any]]] = [
        (file_name, _flatten_tree(file, setting_types)),
        (
            "environment",
            {
                path_name: env[variable]
                for path_name in setting_types
                if (variable := "FALAJ_" + path_name.upper().replace(".", "_")) in env
            },
        ),
        ("argument", {path_name: override for path_name, override in overrides.items() if override is not None}),
    ]
    for source, layer in layers:
        for path, value in layer.items():
            if path not in setting_types:
                raise Invalid(f"{source} sets {path}, which is no setting", "run: falaj settings, for the list")
            values[path] = _coerce_value(path, setting_types[path], value, source)
            sources[path] = source
    return typing.cast(Settings, _build_section(Settings, "", values, sources))


def list_settings(settings: Settings) -> list[tuple[str, Any, str]]:
    """Each setting with its value and where it came from."""
    rows = []
    for path, _ in _list_setting_types(Settings):
        value: Any = settings
        for part in path.split("."):
            value = getattr(value, part)
        rows.append((path, value, settings.sources.get(path, "default")))
    return rows


_get_type_hints = cache(typing.get_type_hints)


def _list_setting_types(cls: type, prefix: str = "") -> list[tuple[str, Any]]:
    hints = _get_type_hints(cls)
    setting_types: list[tuple[str, Any]] = []
    for setting_field in fields(cls):
        if setting_field.name == "sources":
            continue
        if is_dataclass(hints[setting_field.name]):
            setting_types += _list_setting_types(
                typing.cast(type, hints[setting_field.name]), f"{prefix}{setting_field.name}."
            )
        else:
            setting_types.append((prefix + setting_field.name, hints[setting_field.name]))
    return setting_types


def _flatten_tree(tree: Mapping[str, Any], setting_types: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = prefix + name
        if isinstance(value, Mapping) and path not in setting_types:
            flat.update(_flatten_tree(value, setting_types, path + "."))
        else:
            flat[path] = value
    return flat


def _coerce_value(path: str, expected_type: Any, value: Any, source: str) -> Any:
    origin = typing.get_origin(expected_type) or expected_type
    try:
        if origin is bool and isinstance(value, str):
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[value.lower()]
        if origin is tuple:
            return (
                tuple(v.strip() for v in value.split(",") if v.strip())
                if isinstance(value, str)
                else tuple(map(str, value))
            )
        if origin is Mapping or issubclass(origin, Mapping):
            pairs = (p.split("=", 1) for p in value.split(",")) if isinstance(value, str) else value.items()
            return {str(k).strip(): str(v).strip() for k, v in pairs}
        if origin is bool and not isinstance(value, bool):
            raise ValueError(value)
        return origin(value)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise Invalid(
            f"{source} sets {path} to {value!r}", f"it must be a {getattr(origin, '__name__', origin)}"
        ) from error


def _build_section(cls: type, prefix: str, values: Mapping[str, Any], sources: Mapping[str, str]) -> Any:
    hints = _get_type_hints(cls)
    field_values: dict[str, Any] = {"sources": sources} if cls is Settings else {}
    for setting_field in fields(cls):
        path = prefix + setting_field.name
        if is_dataclass(hints[setting_field.name]):
            field_values[setting_field.name] = _build_section(
                typing.cast(type, hints[setting_field.name]), path + ".", values, sources
            )
        elif path in values:
            field_values[setting_field.name] = values[path]
    return cls(**field_values)
