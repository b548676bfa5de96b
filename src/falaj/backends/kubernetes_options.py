"""What is said of a Kubernetes cluster: by its operator in the address and options, and by an attempt in its own."""

import ipaddress
import re
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from falaj.core.errors import Invalid, Unavailable
from falaj.core.executor import Attempt

KIND_BY_OBJECT = {"job": "Job", "jobset": "JobSet", "trainjob": "TrainJob"}
NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_DEFAULT_TOLERATIONS = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "cloud.google.com/gke-spot",
    "kubernetes.azure.com/scalesetpriority",
)


class KubernetesOptions(NamedTuple):
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


OBJECT_CHOICES = ("job", "jobset", "trainjob")
ATTEMPT_OPTIONS = ("object", "queue", "priority_class", "runtime")
_CONNECTION_OPTIONS = ("token", "ca", "cert", "key", "namespace", "path", "context")
KNOWN_OPTIONS = (*_CONNECTION_OPTIONS, *(name for name in KubernetesOptions._fields if name != "namespace"))


def read_options(namespace: str, option_texts: Mapping[str, str]) -> KubernetesOptions:
    """What the options say; lists are written with commas."""
    list_names = ("tolerations", "egress", "claims", "dns")
    list_values = {name: tuple(filter(None, option_texts.get(name, "").split(","))) for name in list_names}
    plain_values: dict[str, Any] = {
        name: option_texts[name]
        for name in KubernetesOptions._fields
        if name in option_texts and name not in (*list_values, "uid", "namespace")
    }
    claims = tuple(
        (claim, path) for claim, _, path in (claim_text.partition(":") for claim_text in list_values["claims"])
    )
    try:
        for block in list_values["egress"]:
            block == "open" or ipaddress.ip_network(block)
        for block in list_values["dns"]:
            ipaddress.ip_network(block)
        uid = int(option_texts.get("uid", "10001"))
    except ValueError as error:
        raise Invalid(f"kubernetes: {error}", "egress=10.0.0.0/8,open or dns=169.254.20.10 or uid=10001") from None
    if option_texts.get("object", "job") not in OBJECT_CHOICES:
        raise Invalid(
            f"kubernetes: {option_texts['object']!r:.40} is no object", f"object is one of {', '.join(OBJECT_CHOICES)}"
        )
    if not NAME_PATTERN.fullmatch(namespace) or uid <= 0 or any(not path.startswith("/") for _, path in claims):
        hint = "namespace=falaj&uid=10001&claims=data:/data"
        raise Invalid("kubernetes: the namespace is no name, the uid is root, or a claim has no path", hint)
    list_options: dict[str, Any] = {
        "egress": list_values["egress"],
        "dns": list_values["dns"],
        "claims": claims,
        "tolerations": (*_DEFAULT_TOLERATIONS, *list_values["tolerations"]),
    }
    return KubernetesOptions(namespace, uid=uid, **list_options, **plain_values)


def resolve_platform_addresses(attempt: Attempt) -> list[str]:
    """The addresses of the platform, which launchers call. A policy knows no names, so they are looked up here."""
    host = urlsplit(str(attempt.context.get("address") or "")).hostname
    if not host:
        return []
    try:
        return sorted(
            {str(address_info[4][0]) for address_info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        )
    except OSError:
        raise Unavailable(f"DNS does not know the platform's address {host!r}", "launchers could not call it") from None


def apply_attempt_options(attempt: Attempt, default_options: KubernetesOptions) -> KubernetesOptions:
    """What was asked as this cluster understands it; Invalid when it cannot be."""
    if unknown_names := sorted(set(attempt.options) - set(ATTEMPT_OPTIONS)):
        raise Invalid(
            f"kubernetes: does not know the option {unknown_names[0]}", f"it knows {', '.join(ATTEMPT_OPTIONS)}"
        )
    options = default_options._replace(**dict[str, Any](attempt.options))
    if options.object not in KIND_BY_OBJECT:
        raise Invalid(f"{options.object[:40]!r} is no object that runs attempts", f"one of {', '.join(KIND_BY_OBJECT)}")
    if attempt.folder or not attempt.launcher or not attempt.slots:
        raise Invalid("kubernetes: needs slots and the launcher, and shares no folder", "leave the folder empty")
    if not (attempt.image or options.image):
        raise Invalid("the job names no image", "name one with python3 in it, or give the cluster the option image")
    if not NAME_PATTERN.fullmatch(account_name := get_service_account(attempt, options)):
        raise Invalid(
            f"{account_name[:60]!r} is no name of a service account", "map people to some: service_account=ml-{user}"
        )
    if any(slot.devices and slot.milli != 1000 for slot in attempt.slots):
        raise Invalid("Kubernetes gives out whole devices", "ask for whole GPUs, or for a MIG model")
    return options


def get_service_account(attempt: Attempt, options: KubernetesOptions) -> str:
    """The service account that it runs under."""
    return options.service_account.replace("{user}", attempt.user).replace("{tenant}", attempt.tenant)
