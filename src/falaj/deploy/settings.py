"""falaj.toml of a site: written from its values, and read back by the platform's own reader before it goes out."""

import hashlib
import json
import tomllib
from typing import Any

from falaj.core.settings import Settings, listing, read_settings
from falaj.deploy.site import Site

DRAIN_S = 12
"""Two probes of a balancer, every 5 s, and some."""
WRITABLE, CERTS = "/var/lib/falaj", "/etc/falaj-tls"
INSIDE = f"{WRITABLE}/home"
"""In a container: a folder made by the platform's own user, since a volume may belong to another."""


def for_machine(site: Site) -> dict[str, Any]:
    """A machine of its own: everything embedded for a small house, addresses of services elsewhere."""
    values = site.values
    found: dict[str, Any] = _named(site) | {
        "home": f"{values['prefix']}{WRITABLE}",
        "listen": values["listen"],
        "hosts": [values["host"], values["infer_host"]],
        "gateway": values["gateway"],
        "gateway_grpc": values["gateway_grpc"],
    }
    if site.profile == "smb":
        return found
    certs = f"{values['prefix']}/etc/falaj/tls"
    return found | _services(site) | {"tls": _tls(certs)}


def for_container(site: Site) -> dict[str, Any]:
    """One container of a small house."""
    return for_machine(site) | {
        "home": INSIDE,
        "listen": "0.0.0.0:8470",
        "gateway": "0.0.0.0:8471",
        "gateway_grpc": "0.0.0.0:8472",
    }


def for_cluster(site: Site) -> dict[str, Any]:
    """Pods: port 443, so that callers name no port; gateways are pods of their own."""
    values = site.values
    inner = [f"{name}.{values['namespace']}.svc" for name in ("falaj", "falaj-gateway")]
    return (
        _named(site)
        | {
            "home": INSIDE,
            "listen": "0.0.0.0:443",
            "hosts": [values["host"], values["infer_host"], *inner],
            "url": f"https://{values['host']}",
            "gateway": "",
            "gateway_url": f"https://{values['infer_host']}",
        }
        | _services(site)
        | {"tls": _tls(CERTS)}
    )


def written(tree: dict[str, Any]) -> str:
    """As TOML: plain values first, then tables."""
    plain = [f"{name} = {json.dumps(value)}" for name, value in tree.items() if not isinstance(value, dict)]
    tables = [
        "\n".join(["", f"[{name}]", *(f"{key} = {json.dumps(inner)}" for key, inner in value.items())])
        for name, value in tree.items()
        if isinstance(value, dict)
    ]
    text = "\n".join([*plain, *tables]) + "\n"
    read_settings(tomllib.loads(text), {}, {})
    return text


def digest(settings: Settings) -> str:
    """One number for all that is set, wherever each value came from."""
    told = [[name, _plain(value)] for name, value, _ in listing(settings)]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def digest_of(text: str) -> str:
    """The digest of a settings file alone, without the environment of whoever looks."""
    return digest(read_settings(tomllib.loads(text), {}, {}))


def _named(site: Site) -> dict[str, Any]:
    values = site.values
    return {"installation": values["host"], "zone": site.zone, "jurisdiction": values["jurisdiction"]}


def _services(site: Site) -> dict[str, Any]:
    """Addresses only. FALAJ_STORE and FALAJ_ONLINE hold passwords, so they come from the environment."""
    values = site.values
    return {
        "blobs": f"s3://{values['bucket']}?region={values['region']}&endpoint={values['objects_url']}",
        "secrets": f"vault:{values['vault_url']}?token=env:VAULT_TOKEN",
        "identity": "oidc:,local:",
        "drain_s": DRAIN_S,
        "limits": {"connections_per_peer": 0},  # the balancer is every caller's peer
        "oidc": {"issuer": values["issuer"], "client": "falaj", "tenant": "claim:tenant"},
    }


def _tls(folder: str) -> dict[str, str]:
    return {"cert": f"{folder}/tls.crt", "key": f"{folder}/tls.key", "ca": f"{folder}/ca.crt"}


def _plain(value: Any) -> Any:
    return dict(value) if hasattr(value, "items") else list(value) if isinstance(value, tuple) else value
