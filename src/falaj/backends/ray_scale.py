"""Elastic capacity of a Ray cluster: its own autoscaler makes the nodes, and is told for how many of each kind to.

`request_resources` of Ray's autoscaler is called by a job, since it has no HTTP interface. A request says all that is
wanted and stays until the next one. Ray ends what idles beyond it (`idle_timeout_minutes`), so nothing is retired here.
Kinds are declared (`kinds=`, see node_kinds.py), each under the name that Ray has for it: nodes say theirs by the label
`ray.io/node-group`, or `template`.
"""

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from falaj.core.errors import Invalid, NotFound
from falaj.core.execute import NodeFacts

_PROGRAM = """
import json, sys, ray
from ray.autoscaler.sdk import request_resources
from ray.experimental.internal_kv import _internal_kv_get as get, _internal_kv_put as put
ray.init(address="auto", log_to_driver=False)
mine = int(sys.argv[1])
while int(get(b"falaj-scale") or 0) < mine:
    put(b"falaj-scale", str(mine).encode(), overwrite=True)
    request_resources(bundles=json.loads(sys.argv[2]))
"""
"""A job that is slow to start must not undo what a later one asked: the highest number stays."""


class RayScaling:
    """A part of the executor."""

    _python: str

    def __init__(self, kinds: Mapping[str, NodeFacts]) -> None:
        self._kinds = kinds
        self._counts: dict[str, int] = {}
        self._told: tuple[str, str] = ("", "")
        """What was last asked for, and by which job."""

    def _ask(self, method: str, path: str, **how: Any) -> dict[str, Any]:
        raise NotImplementedError

    def templates(self) -> Sequence[NodeFacts]:
        """The kinds that were declared."""
        return list(self._kinds.values())

    def scale(self, template: str, count: int) -> None:
        """Ask Ray for so many of this kind, beside what was asked of the others."""
        if template not in self._kinds or not 0 <= count <= int(self._kinds[template].labels["most"]):
            raise Invalid(f"there cannot be {count} nodes {template!r} here", "the option `kinds` says how many")
        self._counts[template] = count
        bundles = [_bundle(self._kinds[name]) for name, many in sorted(self._counts.items()) for _ in range(many)]
        text = json.dumps(bundles, sort_keys=True)
        if self._told[0] == text and self._heard():
            return
        number = str(time.time_ns())
        job = f"falaj-scale-{number}"
        words = " ".join(map(shlex.quote, ("-c", _PROGRAM, number, text)))
        self._ask("POST", "/api/jobs/", json={"entrypoint": f"{self._python} {words}", "submission_id": job})
        self._told = (text, job)

    def retire(self, nodes: Sequence[str]) -> None:
        """Ray gives back what idles beyond what is asked for."""

    def _heard(self) -> bool:
        """False when the job that asked has failed; what it leaves behind is removed."""
        try:
            status = str(self._ask("GET", f"/api/jobs/{self._told[1]}").get("status"))
        except NotFound:
            return True
        if status in ("SUCCEEDED", "FAILED", "STOPPED"):
            self._ask("DELETE", f"/api/jobs/{self._told[1]}")
        return status not in ("FAILED", "STOPPED")


def kind_of(labels: Mapping[str, str]) -> str:
    """The kind a node says it is of."""
    return labels.get("ray.io/node-group") or labels.get("template", "")


def _bundle(kind: NodeFacts) -> dict[str, float]:
    """All of a node. Not its memory: Ray keeps a part of that for itself, and none would be large enough."""
    more = {name: float(amount) for name, amount in kind.amounts.items() if name not in ("cpu", "memory")}
    asked = {"CPU": kind.amounts["cpu"] / 1000, "GPU": float(len(kind.devices)), **more}
    return {name: amount for name, amount in asked.items() if amount}
