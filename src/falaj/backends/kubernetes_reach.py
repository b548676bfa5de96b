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

from falaj.core.credential import credential
from falaj.core.errors import Invalid

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_HINT = "for example kubernetes:https://host:6443?namespace=falaj&token=env:KUBE_TOKEN&ca=/etc/falaj/kube-ca.crt"


class Reach(NamedTuple):
    """One API server: its address, whom it trusts and is trusted by, and the namespace to work in."""

    url: str
    context: ssl.SSLContext
    token: Callable[[], str] = lambda: ""
    namespace: str = "default"


def reach_of(place: str, given: Mapping[str, str]) -> Reach:
    """The server that an address without its scheme and query names."""
    if place in ("", "in-cluster"):
        return _from_pod(given)
    if place == "kubeconfig":
        return _from_kubeconfig(given)
    context = _trust(given.get("ca", ""), given.get("cert", ""), given.get("key", ""))
    token = (lambda: secret_of(given["token"], "token")) if "token" in given else (lambda: "")
    return Reach(_checked(place), context, token, given.get("namespace", "default"))


def secret_of(value: str, what: str) -> str:
    """What is pointed at, or the value itself where the shelf of secrets gave it."""
    return credential(value, what) if value.startswith(("env:", "file:")) else value


def _checked(url: str) -> str:
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not parts.hostname or not (parts.scheme == "https" or local) or parts.username:
        raise Invalid("kubernetes: needs an https address", _HINT)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _from_pod(given: Mapping[str, str]) -> Reach:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise Invalid("kubernetes: without an address works only inside a cluster, and this is none", _HINT)
    own = (_POD / "namespace").read_text(encoding="utf-8").strip() if (_POD / "namespace").is_file() else "default"
    token = given.get("token", f"file:{_POD / 'token'}")
    context = _trust(given.get("ca", str(_POD / "ca.crt")), "", "")
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Reach(url, context, lambda: secret_of(token, "token"), given.get("namespace", own))


def _from_kubeconfig(given: Mapping[str, str]) -> Reach:
    path = Path(given.get("path") or os.environ.get("KUBECONFIG") or "~/.kube/config").expanduser()
    whole = _read(path)
    chosen = given.get("context") or str(whole.get("current-context", ""))
    about = _named(whole, "context", chosen)
    cluster, user = (_named(whole, kind, str(about.get(kind, ""))) for kind in ("cluster", "user"))
    if cluster.get("insecure-skip-tls-verify") or {"exec", "auth-provider", "username"} & set(user):
        raise Invalid(
            f"the context {chosen!r} skips TLS or signs in by a program or a password",
            "make a service account and give its token, or a client certificate",
        )
    ca = _inline(cluster, "certificate-authority", path)
    cert, key = (_inline(user, f"client-{what}", path) for what in ("certificate", "key"))
    pointer = f"file:{user['tokenFile']}" if "tokenFile" in user else str(user.get("token", ""))
    namespace = given.get("namespace") or str(about.get("namespace") or "default")
    url = _checked(str(cluster.get("server", "")))
    return Reach(url, _trust(ca, cert, key), lambda: secret_of(pointer, "token"), namespace)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        import yaml
    except ImportError:
        raise Invalid("a kubeconfig needs the package PyYAML", "pip install 'falaj[kubernetes]'") from None
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"the kubeconfig cannot be read: {error.strerror}", f"is {path} there?") from None
    except (ValueError, yaml.YAMLError):
        found = None
    if not isinstance(found, dict):
        raise Invalid(f"{path} is no kubeconfig", "kubectl config view shows a good one")
    return found


def _named(whole: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    for one in whole.get(f"{kind}s") or ():
        if one.get("name") == name:
            return one.get(kind) or {}
    raise Invalid(f"the kubeconfig has no {kind} {name!r}", "name one of its contexts: context=NAME")


def _inline(section: Mapping[str, Any], name: str, path: Path) -> str:
    if data := section.get(f"{name}-data"):
        return base64.b64decode(data).decode()
    return str(path.parent / section[name]) if section.get(name) else ""


def _trust(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """Certificates by path or as PEM text. OpenSSL takes our own from files only."""
    trusted = {"cadata" if "-----BEGIN" in ca else "cafile": ca.removeprefix("file:")} if ca else {}
    try:
        context = ssl.create_default_context(**trusted)  # type: ignore[arg-type]
        if cert:
            with tempfile.TemporaryDirectory() as folder:
                files = [_file(pem, Path(folder, name)) for name, pem in (("cert", cert), ("key", key)) if pem]
                context.load_cert_chain(*files)
    except OSError as error:
        raise Invalid(
            f"a certificate of the cluster cannot be used: {error}", "give PEM files: ca, cert, key"
        ) from None
    return context


def _file(pem: str, draft: Path) -> str:
    if "-----BEGIN" not in pem:
        return pem.removeprefix("file:")
    draft.touch(mode=0o600)
    draft.write_text(pem, encoding="ascii")
    return str(draft)
