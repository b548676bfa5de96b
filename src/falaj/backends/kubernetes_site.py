"""What is said of a Kubernetes cluster: by its operator in the address and options, and by an attempt in its own."""

import ipaddress
import re
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from falaj.core.errors import Invalid, Unavailable
from falaj.core.execute import Attempt

KINDS = {"job": "Job", "jobset": "JobSet", "trainjob": "TrainJob"}
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_TOLERATED = ("nvidia.com/gpu", "amd.com/gpu", "cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority")


class Site(NamedTuple):
    """What the operator says of a cluster; options of an attempt may change those of OPEN."""

    namespace: str
    object: str = "job"
    queue: str = ""
    priority_class: str = ""
    runtime: str = "torch-distributed"
    image: str = ""
    service_account: str = "{user}"
    uid: int = 10001
    python: str = "python3"
    tolerations: tuple[str, ...] = ()
    egress: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()
    """Addresses of the DNS servers that pods may ask; the pods of kube-dns when empty."""
    claims: tuple[tuple[str, str], ...] = ()
    pull_secret: str = ""
    runtime_class: str = ""


OBJECTS = ("job", "jobset", "trainjob")
OPEN = ("object", "queue", "priority_class", "runtime")
_CONNECT = ("token", "ca", "cert", "key", "namespace", "path", "context")
KNOWN = (*_CONNECT, *(name for name in Site._fields if name != "namespace"))


def site_of(namespace: str, given: Mapping[str, str]) -> Site:
    """What the options say; lists are written with commas."""
    lists = ("tolerations", "egress", "claims", "dns")
    words = {name: tuple(filter(None, given.get(name, "").split(","))) for name in lists}
    plain: dict[str, Any] = {
        name: given[name] for name in Site._fields if name in given and name not in (*words, "uid", "namespace")
    }
    claims = tuple((claim, path) for claim, _, path in (word.partition(":") for word in words["claims"]))
    try:
        for block in words["egress"]:
            block == "open" or ipaddress.ip_network(block)
        for block in words["dns"]:
            ipaddress.ip_network(block)
        uid = int(given.get("uid", "10001"))
    except ValueError as error:
        raise Invalid(f"kubernetes: {error}", "egress=10.0.0.0/8,open or dns=169.254.20.10 or uid=10001") from None
    if given.get("object", "job") not in OBJECTS:
        raise Invalid(f"kubernetes: {given['object']!r:.40} is no object", f"object is one of {', '.join(OBJECTS)}")
    if not NAME.fullmatch(namespace) or uid <= 0 or any(not path.startswith("/") for _, path in claims):
        hint = "namespace=falaj&uid=10001&claims=data:/data"
        raise Invalid("kubernetes: the namespace is no name, the uid is root, or a claim has no path", hint)
    known: dict[str, Any] = {
        "egress": words["egress"],
        "dns": words["dns"],
        "claims": claims,
        "tolerations": (*_TOLERATED, *words["tolerations"]),
    }
    return Site(namespace, uid=uid, **known, **plain)


def platform_of(attempt: Attempt) -> list[str]:
    """The addresses of the platform, which launchers call. A policy knows no names, so they are looked up here."""
    host = urlsplit(str(attempt.context.get("address") or "")).hostname
    if not host:
        return []
    try:
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    except OSError:
        raise Unavailable(f"DNS does not know the platform's address {host!r}", "launchers could not call it") from None


def asked_of(attempt: Attempt, usual: Site) -> Site:
    """What was asked as this cluster understands it; Invalid when it cannot be."""
    if strange := sorted(set(attempt.options) - set(OPEN)):
        raise Invalid(f"kubernetes: does not know the option {strange[0]}", f"it knows {', '.join(OPEN)}")
    site = usual._replace(**dict[str, Any](attempt.options))
    if site.object not in KINDS:
        raise Invalid(f"{site.object[:40]!r} is no object that runs attempts", f"one of {', '.join(KINDS)}")
    if attempt.folder or not attempt.launcher or not attempt.slots:
        raise Invalid("kubernetes: needs slots and the launcher, and shares no folder", "leave the folder empty")
    if not (attempt.image or site.image):
        raise Invalid("the job names no image", "name one with python3 in it, or give the cluster the option image")
    if not NAME.fullmatch(who := account(attempt, site)):
        raise Invalid(f"{who[:60]!r} is no name of a service account", "map people to some: service_account=ml-{user}")
    if any(slot.devices and slot.milli != 1000 for slot in attempt.slots):
        raise Invalid("Kubernetes gives out whole devices", "ask for whole GPUs, or for a MIG model")
    return site


def account(attempt: Attempt, site: Site) -> str:
    """The service account that it runs under."""
    return site.service_account.replace("{user}", attempt.user).replace("{tenant}", attempt.tenant)
