"""A site: the few values that tell one deployment from another. Whatever is not said has a default that is safe.

Values land inside shell scripts, YAML and unit files, so each has a pattern that leaves no room for quotes or spaces.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from falaj import __version__
from falaj.core.errors import Invalid

PROFILES = ("smb", "enterprise", "air-gapped")
_ZONE_PATTERN = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_NAME_REGEX, _HOST_REGEX = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_PATH_REGEX, _NUMBER_REGEX, _IMAGE_REGEX = (
    r"(/[A-Za-z0-9._+-]+)*",
    r"[1-9][0-9]{0,5}",
    r"[a-z0-9][a-z0-9./:_-]*(@sha256:[0-9a-f]{64})?",
)
_LISTEN_REGEX, _CIDR_REGEX, _URL_REGEX = (
    r"[0-9a-f.:\[\]]+:[0-9]{1,5}",
    r"[0-9a-f.:]+/[0-9]{1,3}",
    r"https://[A-Za-z0-9./:_-]+",
)


@dataclass(frozen=True, slots=True)
class SiteOption:
    """One value: what it means, what it may look like, what it is when nobody says."""

    name: str
    default: str
    pattern: str
    meaning: str


SITE_OPTIONS = tuple(
    SiteOption(*option_fields)
    for option_fields in (
        ("prefix", "", _PATH_REGEX, "a folder before every path of a machine; for trials"),
        ("user", "falaj", r"[a-z_][a-z0-9_-]{0,31}", "the Unix user the platform runs as on a machine"),
        ("host", "falaj.example", _HOST_REGEX, "the name people call it by"),
        ("infer_host", "infer.example", _HOST_REGEX, "the name endpoints are called by"),
        ("listen", "0.0.0.0:8470", _LISTEN_REGEX, "where a machine answers"),
        ("gateway", "0.0.0.0:8471", _LISTEN_REGEX, "where a machine answers for endpoints"),
        ("gateway_grpc", "0.0.0.0:8472", _LISTEN_REGEX, "the same by gRPC"),
        ("jurisdiction", "", r"[A-Z][A-Z0-9-]{1,15}", "whose law holds there; by default the zone's first letters"),
        ("backup_hours", "6", r"1|2|3|4|6|8|12|24", "how often a backup is made"),
        ("keep_backups", "28", _NUMBER_REGEX, "how many backups stay"),
        (
            "namespace",
            "falaj",
            _NAME_REGEX,
            "the Kubernetes namespace of the control plane; attempts have NAMESPACE-work",
        ),
        ("replicas", "2", r"[2-9]|[1-9][0-9]", "replicas of the control plane and of the gateway"),
        ("image", "registry.example/falaj", _IMAGE_REGEX, "the image that the Dockerfile makes, without its tag"),
        ("image_tag", __version__, r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", "the tag of that image"),
        ("python_image", "python:3.12-slim-bookworm", _IMAGE_REGEX, "what the Dockerfile begins with"),
        ("postgres_image", "postgres:17-bookworm", _IMAGE_REGEX, "PostgreSQL, where it runs in the cluster"),
        ("redis_image", "valkey/valkey:8-bookworm", _IMAGE_REGEX, "Valkey, where it runs in the cluster"),
        ("objects_image", "chrislusf/seaweedfs:3.97", _IMAGE_REGEX, "SeaweedFS, where it runs in the cluster"),
        ("ray_image", "rayproject/ray:2.52.0-py312-gpu", _IMAGE_REGEX, "Ray, where it runs in the cluster"),
        ("proxy_image", "nginxinc/nginx-unprivileged:1.29-alpine", _IMAGE_REGEX, "TLS before Ray's dashboard"),
        (
            "mirror",
            "registry.internal.example",
            _IMAGE_REGEX,
            "the registry that holds every image of an air-gapped site",
        ),
        ("wheelhouse", "/srv/wheelhouse", _PATH_REGEX, "the folder of wheels of an air-gapped site"),
        ("bucket", "falaj-data", r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", "the bucket of blobs"),
        ("region", "me-central-1", _NAME_REGEX, "the region of that bucket"),
        ("objects_url", "https://objects.example", _URL_REGEX, "the address of the S3 service"),
        ("vault_url", "https://vault.example:8200/transit", _URL_REGEX, "the transit engine that wraps root keys"),
        ("issuer", "https://login.example", _URL_REGEX, "the identity provider"),
        (
            "services_cidr",
            "10.0.0.0/8",
            _CIDR_REGEX,
            "where database, Redis, objects, keys and the identity provider are",
        ),
        ("api_cidr", "10.0.0.0/8", _CIDR_REGEX, "where the Kubernetes API server is"),
        ("ingress_class", "nginx", _NAME_REGEX, "the ingress controller; it must pass TLS through"),
        ("ingress_namespace", "ingress-nginx", _NAME_REGEX, "its namespace"),
        ("storage_class", "standard", _NAME_REGEX, "the storage class of volumes"),
        ("gpus", "8", _NUMBER_REGEX, "GPUs that jobs may hold at a time"),
        ("cpus", "128", _NUMBER_REGEX, "CPUs that jobs may hold at a time"),
        ("memory_gib", "1024", _NUMBER_REGEX, "memory that jobs may hold at a time"),
        ("gpu_pool", "gpu", _NAME_REGEX, "the value of the label falaj.dev/pool on GPU nodes"),
        ("slurm_nodes", "gpu[01-04]", r"[A-Za-z0-9,\[\]-]+", "the nodes of the Slurm partition"),
        ("slurm_gres", "gpu:h200:8", r"gpu:[a-z0-9_.-]+:[0-9]{1,2}", "what each of them has"),
        ("slurm_folder", "/shared/falaj", _PATH_REGEX, "the folder that platform and nodes share"),
        ("control_url", "https://falaj.example", _URL_REGEX, "the control plane that an agent of this zone joins"),
        ("skew_s", "5", _NUMBER_REGEX, "how far two clocks may be apart"),
    )
)
_IMAGE_OPTIONS = tuple(
    site_option.name
    for site_option in SITE_OPTIONS
    if site_option.name == "image" or site_option.name.endswith("_image")
)


@dataclass(frozen=True, slots=True)
class DeploymentSite:
    """What was asked for: a profile, a zone, and values that differ from their defaults."""

    profile: str
    zone: str
    chosen: Mapping[str, str]

    @staticmethod
    def of(profile: str, zone: str, given_values: Mapping[str, str]) -> "DeploymentSite":
        """Refuse what is unknown or would not be safe where it is written."""
        if profile not in PROFILES:
            raise Invalid(f"there is no profile {profile[:40]!r}", f"one of {', '.join(PROFILES)}")
        if len(zone) > 40 or not _ZONE_PATTERN.fullmatch(zone):
            raise Invalid(f"{zone[:60]!r} cannot be the name of a zone", "small letters, digits and dashes: ae-dxb-1")
        option_by_name = {key.name: key for key in SITE_OPTIONS}
        for name, value in given_values.items():
            if name not in option_by_name:
                raise Invalid(f"there is no value {name[:40]!r}", "falaj deploy values lists them")
            if not re.fullmatch(option_by_name[name].pattern, value):
                raise Invalid(
                    f"{name} cannot be {value[:60]!r}",
                    f"{option_by_name[name].meaning}; it matches {option_by_name[name].pattern}",
                )
        return DeploymentSite(profile, zone, {name: given_values[name] for name in sorted(given_values)})

    @property
    def command(self) -> str:
        """How to make the same again."""
        set_flags = "".join(f" --set {name}={value}" for name, value in self.chosen.items())
        return f"falaj deploy render --profile {self.profile} --zone {self.zone}{set_flags}"

    @property
    def values(self) -> dict[str, str]:
        """Every value, chosen or default, and what follows from them."""
        zone_prefix = self.zone.partition("-")[0].upper()
        values = {site_option.name: site_option.default for site_option in SITE_OPTIONS} | {
            "jurisdiction": zone_prefix if len(zone_prefix) == 2 else "AE"
        }
        values |= self.chosen
        is_air_gapped = self.profile == "air-gapped"
        if is_air_gapped:
            values |= {name: f"{values['mirror']}/{_strip_registry(values[name])}" for name in _IMAGE_OPTIONS}
        pip_arguments = f" --no-index --find-links {values['wheelhouse']}"
        return values | {
            "profile": self.profile,
            "zone": self.zone,
            "version": __version__,
            "every": "0" if values["backup_hours"] == "24" else f"*/{values['backup_hours']}",
            "calendar": "00" if values["backup_hours"] == "24" else f"00/{values['backup_hours']}",
            "port": values["listen"].rpartition(":")[2],
            "machine_tls": " --tls" if self.profile == "smb" else "",
            "pip_arguments": pip_arguments if is_air_gapped else "",
            "way_out": "# nothing here reaches beyond services_cidr"
            if is_air_gapped
            else "- ../../components/outbound",
        }

    @property
    def images(self) -> list[tuple[str, str]]:
        """Every image with where it comes from and what it is called here."""
        own_images, source_images = (
            self.values,
            {site_option.name: site_option.default for site_option in SITE_OPTIONS} | dict(self.chosen),
        )
        image_tags = {"image": f":{own_images['image_tag']}"}
        return [
            (source_images[name] + image_tags.get(name, ""), own_images[name] + image_tags.get(name, ""))
            for name in _IMAGE_OPTIONS
        ]


def _strip_registry(image: str) -> str:
    """A mirror keeps the path and drops the registry, which is a first part with a dot or a port in it."""
    registry_part, slash, image_path = image.partition("/")
    return image_path if slash and ("." in registry_part or ":" in registry_part) else image
