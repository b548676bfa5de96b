"""A site: the few values that tell one deployment from another. Whatever is not said has a default that is safe.

Values land inside shell scripts, YAML and unit files, so each has a pattern that leaves no room for quotes or spaces.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from falaj import __version__
from falaj.core.errors import Invalid

PROFILES = ("smb", "enterprise", "air-gapped")
_ZONE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_NAME, _HOST = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_PATH, _NUMBER, _IMAGE = r"(/[A-Za-z0-9._+-]+)*", r"[1-9][0-9]{0,5}", r"[a-z0-9][a-z0-9./:_-]*(@sha256:[0-9a-f]{64})?"
_LISTEN, _CIDR, _URL = r"[0-9a-f.:\[\]]+:[0-9]{1,5}", r"[0-9a-f.:]+/[0-9]{1,3}", r"https://[A-Za-z0-9./:_-]+"


@dataclass(frozen=True, slots=True)
class Key:
    """One value: what it means, what it may look like, what it is when nobody says."""

    name: str
    default: str
    pattern: str
    meaning: str


KEYS = tuple(
    Key(*row)
    for row in (
        ("prefix", "", _PATH, "a folder before every path of a machine; for trials"),
        ("user", "falaj", r"[a-z_][a-z0-9_-]{0,31}", "the Unix user the platform runs as on a machine"),
        ("host", "falaj.example", _HOST, "the name people call it by"),
        ("infer_host", "infer.example", _HOST, "the name endpoints are called by"),
        ("listen", "0.0.0.0:8470", _LISTEN, "where a machine answers"),
        ("gateway", "0.0.0.0:8471", _LISTEN, "where a machine answers for endpoints"),
        ("gateway_grpc", "0.0.0.0:8472", _LISTEN, "the same by gRPC"),
        ("jurisdiction", "", r"[A-Z][A-Z0-9-]{1,15}", "whose law holds there; by default the zone's first letters"),
        ("backup_hours", "6", r"1|2|3|4|6|8|12|24", "how often a backup is made"),
        ("keep_backups", "28", _NUMBER, "how many backups stay"),
        ("namespace", "falaj", _NAME, "the Kubernetes namespace of the control plane; attempts have NAMESPACE-work"),
        ("replicas", "2", r"[2-9]|[1-9][0-9]", "replicas of the control plane and of the gateway"),
        ("image", "registry.example/falaj", _IMAGE, "the image that the Dockerfile makes, without its tag"),
        ("image_tag", __version__, r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", "the tag of that image"),
        ("python_image", "python:3.12-slim-bookworm", _IMAGE, "what the Dockerfile begins with"),
        ("postgres_image", "postgres:17-bookworm", _IMAGE, "PostgreSQL, where it runs in the cluster"),
        ("redis_image", "valkey/valkey:8-bookworm", _IMAGE, "Valkey, where it runs in the cluster"),
        ("objects_image", "chrislusf/seaweedfs:3.97", _IMAGE, "SeaweedFS, where it runs in the cluster"),
        ("ray_image", "rayproject/ray:2.52.0-py312-gpu", _IMAGE, "Ray, where it runs in the cluster"),
        ("proxy_image", "nginxinc/nginx-unprivileged:1.29-alpine", _IMAGE, "TLS before Ray's dashboard"),
        ("mirror", "registry.internal.example", _IMAGE, "the registry that holds every image of an air-gapped site"),
        ("wheelhouse", "/srv/wheelhouse", _PATH, "the folder of wheels of an air-gapped site"),
        ("bucket", "falaj-data", r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", "the bucket of blobs"),
        ("region", "me-central-1", _NAME, "the region of that bucket"),
        ("objects_url", "https://objects.example", _URL, "the address of the S3 service"),
        ("vault_url", "https://vault.example:8200/transit", _URL, "the transit engine that wraps root keys"),
        ("issuer", "https://login.example", _URL, "the identity provider"),
        ("services_cidr", "10.0.0.0/8", _CIDR, "where database, Redis, objects, keys and the identity provider are"),
        ("api_cidr", "10.0.0.0/8", _CIDR, "where the Kubernetes API server is"),
        ("ingress_class", "nginx", _NAME, "the ingress controller; it must pass TLS through"),
        ("ingress_namespace", "ingress-nginx", _NAME, "its namespace"),
        ("storage_class", "standard", _NAME, "the storage class of volumes"),
        ("gpus", "8", _NUMBER, "GPUs that jobs may hold at a time"),
        ("cpus", "128", _NUMBER, "CPUs that jobs may hold at a time"),
        ("memory_gib", "1024", _NUMBER, "memory that jobs may hold at a time"),
        ("gpu_pool", "gpu", _NAME, "the value of the label falaj.dev/pool on GPU nodes"),
        ("slurm_nodes", "gpu[01-04]", r"[A-Za-z0-9,\[\]-]+", "the nodes of the Slurm partition"),
        ("slurm_gres", "gpu:h200:8", r"gpu:[a-z0-9_.-]+:[0-9]{1,2}", "what each of them has"),
        ("slurm_folder", "/shared/falaj", _PATH, "the folder that platform and nodes share"),
        ("control_url", "https://falaj.example", _URL, "the control plane that an agent of this zone joins"),
        ("skew_s", "5", _NUMBER, "how far two clocks may be apart"),
    )
)  # fmt: skip
_IMAGES = tuple(key.name for key in KEYS if key.name == "image" or key.name.endswith("_image"))


@dataclass(frozen=True, slots=True)
class Site:
    """What was asked for: a profile, a zone, and values that differ from their defaults."""

    profile: str
    zone: str
    chosen: Mapping[str, str]

    @staticmethod
    def of(profile: str, zone: str, given: Mapping[str, str]) -> "Site":
        """Refuse what is unknown or would not be safe where it is written."""
        if profile not in PROFILES:
            raise Invalid(f"there is no profile {profile[:40]!r}", f"one of {', '.join(PROFILES)}")
        if len(zone) > 40 or not _ZONE.fullmatch(zone):
            raise Invalid(f"{zone[:60]!r} cannot be the name of a zone", "small letters, digits and dashes: ae-dxb-1")
        known = {key.name: key for key in KEYS}
        for name, value in given.items():
            if name not in known:
                raise Invalid(f"there is no value {name[:40]!r}", "falaj deploy values lists them")
            if not re.fullmatch(known[name].pattern, value):
                raise Invalid(
                    f"{name} cannot be {value[:60]!r}", f"{known[name].meaning}; it matches {known[name].pattern}"
                )
        return Site(profile, zone, {name: given[name] for name in sorted(given)})

    @property
    def command(self) -> str:
        """How to make the same again."""
        sets = "".join(f" --set {name}={value}" for name, value in self.chosen.items())
        return f"falaj deploy render --profile {self.profile} --zone {self.zone}{sets}"

    @property
    def values(self) -> dict[str, str]:
        """Every value, chosen or default, and what follows from them."""
        first = self.zone.partition("-")[0].upper()
        values = {key.name: key.default for key in KEYS} | {"jurisdiction": first if len(first) == 2 else "AE"}
        values |= self.chosen
        cut_off = self.profile == "air-gapped"
        if cut_off:
            values |= {name: f"{values['mirror']}/{_without_registry(values[name])}" for name in _IMAGES}
        wheels = f" --no-index --find-links {values['wheelhouse']}"
        return values | {
            "profile": self.profile,
            "zone": self.zone,
            "version": __version__,
            "every": "0" if values["backup_hours"] == "24" else f"*/{values['backup_hours']}",
            "calendar": "00" if values["backup_hours"] == "24" else f"00/{values['backup_hours']}",
            "port": values["listen"].rpartition(":")[2],
            "machine_tls": " --tls" if self.profile == "smb" else "",
            "pip_arguments": wheels if cut_off else "",
            "way_out": "# nothing here reaches beyond services_cidr" if cut_off else "- ../../components/outbound",
        }

    @property
    def images(self) -> list[tuple[str, str]]:
        """Every image with where it comes from and what it is called here."""
        here, far = self.values, {key.name: key.default for key in KEYS} | dict(self.chosen)
        tag = {"image": f":{here['image_tag']}"}
        return [(far[name] + tag.get(name, ""), here[name] + tag.get(name, "")) for name in _IMAGES]


def _without_registry(image: str) -> str:
    """A mirror keeps the path and drops the registry, which is a first part with a dot or a port in it."""
    first, slash, rest = image.partition("/")
    return rest if slash and ("." in first or ":" in first) else image
