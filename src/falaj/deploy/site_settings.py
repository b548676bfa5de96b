"""falaj.toml of a site: written from its values, and read back by the platform's own reader before it goes out."""

import hashlib
import json
import tomllib
from typing import Any

from falaj.core.settings import Settings, list_settings, read_settings
from falaj.deploy.site import DeploymentSite

DRAIN_TIMEOUT_S = 12
"""Two probes of a balancer, every 5 s, and some."""
DATA_FOLDER, CERTIFICATES_FOLDER = "/var/lib/falaj", "/etc/falaj-tls"
CONTAINER_HOME = f"{DATA_FOLDER}/home"
"""In a container: a folder made by the platform's own user, since a volume may belong to another."""


def make_machine_settings(site: DeploymentSite) -> dict[str, Any]:
    """A machine of its own: everything embedded for a small house, addresses of services elsewhere."""
    values = site.values
    settings_tree: dict[str, Any] = _make_identity_settings(site) | {
        "home": f"{values['prefix']}{DATA_FOLDER}",
        "listen": values["listen"],
        "hosts": [values["host"], values["infer_host"]],
        "gateway": values["gateway"],
        "gateway_grpc": values["gateway_grpc"],
    }
    if site.profile == "smb":
        return settings_tree
    certificates_folder = f"{values['prefix']}/etc/falaj/tls"
    return settings_tree | _make_service_settings(site) | {"tls": _make_tls_settings(certificates_folder)}


def make_container_settings(site: DeploymentSite) -> dict[str, Any]:
    """One container of a small house."""
    return make_machine_settings(site) | {
        "home": CONTAINER_HOME,
        "listen": "0.0.0.0:8470",
        "gateway": "0.0.0.0:8471",
        "gateway_grpc": "0.0.0.0:8472",
    }


def make_cluster_settings(site: DeploymentSite) -> dict[str, Any]:
    """Pods: port 443, so that callers name no port; gateways are pods of their own."""
    values = site.values
    service_hosts = [f"{name}.{values['namespace']}.svc" for name in ("falaj", "falaj-gateway")]
    return (
        _make_identity_settings(site)
        | {
            "home": CONTAINER_HOME,
            "listen": "0.0.0.0:443",
            "hosts": [values["host"], values["infer_host"], *service_hosts],
            "url": f"https://{values['host']}",
            "gateway": "",
            "gateway_url": f"https://{values['infer_host']}",
        }
        | _make_service_settings(site)
        | {"tls": _make_tls_settings(CERTIFICATES_FOLDER)}
    )


def format_toml(settings_tree: dict[str, Any]) -> str:
    """As TOML: plain values first, then tables."""
    plain_lines = [
        f"{name} = {json.dumps(value)}" for name, value in settings_tree.items() if not isinstance(value, dict)
    ]
    table_texts = [
        "\n".join(["", f"[{name}]", *(f"{key} = {json.dumps(item)}" for key, item in value.items())])
        for name, value in settings_tree.items()
        if isinstance(value, dict)
    ]
    text = "\n".join([*plain_lines, *table_texts]) + "\n"
    read_settings(tomllib.loads(text), {}, {})
    return text


def compute_digest(settings: Settings) -> str:
    """One number for all that is set, wherever each value came from."""
    setting_values = [[name, _to_plain(value)] for name, value, _ in list_settings(settings)]
    return hashlib.sha256(json.dumps(setting_values, sort_keys=True).encode()).hexdigest()


def compute_file_digest(text: str) -> str:
    """The digest of a settings file alone, without the environment of whoever looks."""
    return compute_digest(read_settings(tomllib.loads(text), {}, {}))


def _make_identity_settings(site: DeploymentSite) -> dict[str, Any]:
    values = site.values
    return {"installation": values["host"], "zone": site.zone, "jurisdiction": values["jurisdiction"]}


def _make_service_settings(site: DeploymentSite) -> dict[str, Any]:
    """Addresses only. FALAJ_STORE and FALAJ_ONLINE hold passwords, so they come from the environment."""
    values = site.values
    return {
        "blobs": f"s3://{values['bucket']}?region={values['region']}&endpoint={values['objects_url']}",
        "secrets": f"vault:{values['vault_url']}?token=env:VAULT_TOKEN",
        "identity": "oidc:,local:",
        "drain_s": DRAIN_TIMEOUT_S,
        "limits": {"connections_per_peer": 0},  # the balancer is every caller's peer
        "oidc": {"issuer": values["issuer"], "client": "falaj", "tenant": "claim:tenant"},
    }


def _make_tls_settings(folder: str) -> dict[str, str]:
    return {"cert": f"{folder}/tls.crt", "key": f"{folder}/tls.key", "ca": f"{folder}/ca.crt"}


def _to_plain(value: Any) -> Any:
    return dict(value) if hasattr(value, "items") else list(value) if isinstance(value, tuple) else value
