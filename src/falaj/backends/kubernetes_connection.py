"""Where a Kubernetes API is and how we are known there: from an address, a kubeconfig, or the pod that we run in.

TLS is always verified; plain HTTP is for a proxy on this very machine. Tokens are read anew when the server turns one
away, since those of pods live for an hour.
"""

import base64
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from falaj.core.credential import read_credential
from falaj.core.errors import Invalid

_LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
_SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_ADDRESS_HINT = (
    "for example kubernetes:https://host:6443?namespace=falaj&token=env:KUBE_TOKEN&ca=/etc/falaj/kube-ca.crt"
)


class KubernetesConnection(NamedTuple):
    """One API server: its address, whom it trusts and is trusted by, and the namespace to work in."""

    url: str
    context: ssl.SSLContext
    token: Callable[[], str] = lambda: ""
    namespace: str = "default"


def resolve_connection(address: str, options: Mapping[str, str]) -> KubernetesConnection:
    """The server that an address without its scheme and query names."""
    if address in ("", "in-cluster"):
        return _connect_in_cluster(options)
    if address == "kubeconfig":
        return _connect_by_kubeconfig(options)
    ssl_context = _create_ssl_context(options.get("ca", ""), options.get("cert", ""), options.get("key", ""))
    token = (lambda: read_secret(options["token"], "token")) if "token" in options else (lambda: "")
    return KubernetesConnection(_require_https_url(address), ssl_context, token, options.get("namespace", "default"))


def read_secret(value: str, label: str) -> str:
    """What is pointed at, or the value itself where the shelf of secrets gave it."""
    return read_credential(value, label) if value.startswith(("env:", "file:")) else value


def _require_https_url(url: str) -> str:
    parts = urlsplit(url)
    is_local = parts.scheme == "http" and parts.hostname in _LOOPBACK_HOSTS
    if not parts.hostname or not (parts.scheme == "https" or is_local) or parts.username:
        raise Invalid("kubernetes: needs an https address", _ADDRESS_HINT)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _connect_in_cluster(options: Mapping[str, str]) -> KubernetesConnection:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise Invalid("kubernetes: without an address works only inside a cluster, and this is none", _ADDRESS_HINT)
    own_namespace = (
        (_SERVICE_ACCOUNT_FOLDER / "namespace").read_text(encoding="utf-8").strip()
        if (_SERVICE_ACCOUNT_FOLDER / "namespace").is_file()
        else "default"
    )
    token = options.get("token", f"file:{_SERVICE_ACCOUNT_FOLDER / 'token'}")
    ssl_context = _create_ssl_context(options.get("ca", str(_SERVICE_ACCOUNT_FOLDER / "ca.crt")), "", "")
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return KubernetesConnection(
        url, ssl_context, lambda: read_secret(token, "token"), options.get("namespace", own_namespace)
    )


def _connect_by_kubeconfig(options: Mapping[str, str]) -> KubernetesConnection:
    path = Path(options.get("path") or os.environ.get("KUBECONFIG") or "~/.kube/config").expanduser()
    kubeconfig = _read_kubeconfig(path)
    context_name = options.get("context") or str(kubeconfig.get("current-context", ""))
    context_entry = _find_named_entry(kubeconfig, "context", context_name)
    cluster, user = (
        _find_named_entry(kubeconfig, kind, str(context_entry.get(kind, ""))) for kind in ("cluster", "user")
    )
    if cluster.get("insecure-skip-tls-verify") or {"exec", "auth-provider", "username"} & set(user):
        raise Invalid(
            f"the context {context_name!r} skips TLS or signs in by a program or a password",
            "make a service account and give its token, or a client certificate",
        )
    ca = _read_pem_or_path(cluster, "certificate-authority", path)
    cert, key = (_read_pem_or_path(user, f"client-{part}", path) for part in ("certificate", "key"))
    token_pointer = f"file:{user['tokenFile']}" if "tokenFile" in user else str(user.get("token", ""))
    namespace = options.get("namespace") or str(context_entry.get("namespace") or "default")
    url = _require_https_url(str(cluster.get("server", "")))
    return KubernetesConnection(
        url, _create_ssl_context(ca, cert, key), lambda: read_secret(token_pointer, "token"), namespace
    )


def _read_kubeconfig(path: Path) -> Mapping[str, Any]:
    try:
        import yaml
    except ImportError:
        raise Invalid("a kubeconfig needs the package PyYAML", "pip install 'falaj[kubernetes]'") from None
    try:
        kubeconfig = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"the kubeconfig cannot be read: {error.strerror}", f"is {path} there?") from None
    except (ValueError, yaml.YAMLError):
        kubeconfig = None
    if not isinstance(kubeconfig, dict):
        raise Invalid(f"{path} is no kubeconfig", "kubectl config view shows a good one")
    return kubeconfig


def _find_named_entry(kubeconfig: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    for entry in kubeconfig.get(f"{kind}s") or ():
        if entry.get("name") == name:
            return entry.get(kind) or {}
    raise Invalid(f"the kubeconfig has no {kind} {name!r}", "name one of its contexts: context=NAME")


def _read_pem_or_path(section: Mapping[str, Any], name: str, path: Path) -> str:
    if data := section.get(f"{name}-data"):
        return base64.b64decode(data).decode()
    return str(path.parent / section[name]) if section.get(name) else ""


def _create_ssl_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Certificates by path or as PEM text. OpenSSL takes our own from files only."""
    ca_arguments = {"cadata" if "-----BEGIN" in ca else "cafile": ca.removeprefix("file:")} if ca else {}
    try:
        ssl_context = ssl.create_default_context(**ca_arguments)  # type: ignore[arg-type]
        if cert:
            with tempfile.TemporaryDirectory() as folder:
                cert_files = [
                    _to_pem_file(pem, Path(folder, name)) for name, pem in (("cert", cert), ("key", key)) if pem
                ]
                ssl_context.load_cert_chain(*cert_files)
    except OSError as error:
        raise Invalid(
            f"a certificate of the cluster cannot be used: {error}", "give PEM files: ca, cert, key"
        ) from None
    return ssl_context


def _to_pem_file(pem: str, draft_path: Path) -> str:
    if "-----BEGIN" not in pem:
        return pem.removeprefix("file:")
    draft_path.touch(mode=0o600)
    draft_path.write_text(pem, encoding="ascii")
    return str(draft_path)
