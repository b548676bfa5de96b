"""What Kubernetes and the operators say an object may hold: their own schemas, strict about fields they do not know."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.servers.kube_protocol import Refusal
from tests.servers.process import Missing

Json = dict[str, Any]
CRDS = Path(__file__).parents[3] / "shared/crds"
VERSION = "1.34"
CRD_FILES = {
    "JobSet": "jobset/jobset.x-k8s.io_jobsets.yaml",
    "TrainJob": "trainer/trainer.kubeflow.org_trainjobs.yaml",
    "ResourceFlavor": "kueue/kueue.x-k8s.io_resourceflavors.yaml",
    "ClusterQueue": "kueue/kueue.x-k8s.io_clusterqueues.yaml",
    "LocalQueue": "kueue/kueue.x-k8s.io_localqueues.yaml",
    "RayCluster": "kuberay/ray.io_rayclusters.yaml",
}


def check(one: Json) -> None:
    """Refuse an object as a server with strict field validation would; Missing when the schema is not at hand."""
    try:
        import jsonschema
        import kubernetes_validate
    except ImportError as missing:
        raise Missing(f"schemas of Kubernetes are missing: pip install kubernetes-validate ({missing})") from None
    try:
        if one["kind"] in CRD_FILES:
            jsonschema.validate(one, crd_schema(one["kind"], one["apiVersion"]))
        else:
            kubernetes_validate.validate(one, VERSION, strict=True)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as wrong:
        where = ".".join(map(str, wrong.path))
        raise Refusal(422, "Invalid", f"{one['kind']} is invalid: {where}: {wrong.message[:300]}") from wrong


def crd(kind: str) -> Json:
    """The definition itself."""
    path = CRDS / CRD_FILES[kind]
    if not path.is_file():
        raise Missing(f"the definition of {kind} is not at {path}")
    # The fast loader: these files have ten thousand lines.
    found: Json = yaml.load(path.read_text(), yaml.CSafeLoader)
    return found


@cache
def crd_schema(kind: str, version: str) -> Json:
    """The schema of one version, closed: what it does not name is refused."""
    spec = crd(kind)["spec"]
    (found,) = (one for one in spec["versions"] if f"{spec['group']}/{one['name']}" == version)
    schema = _closed(found["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def _closed(schema: Json) -> Json:
    made = {
        name: value
        for name, value in schema.items()
        if not name.startswith("x-") and name not in ("description", "format")
    }
    if schema.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    if "properties" in schema:
        made["properties"] = {name: _closed(one) for name, one in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            made.setdefault("additionalProperties", False)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            made[name] = _closed(schema[name])
    return made
