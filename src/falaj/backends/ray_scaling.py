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
from falaj.core.executor import NodeInfo

_SCALE_PROGRAM = """
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

    def __init__(self, kinds: Mapping[str, NodeInfo]) -> None:
        self._kinds = kinds
        self._count_by_kind: dict[str, int] = {}
        self._last_request: tuple[str, str] = ("", "")
        """What was last asked for, and by which job."""

    def _call_api(self, method: str, path: str, **request_options: Any) -> dict[str, Any]:
        raise NotImplementedError

    def templates(self) -> Sequence[NodeInfo]:
        """The kinds that were declared."""
        return list(self._kinds.values())

    def scale(self, template: str, count: int) -> None:
        """Ask Ray for so many of this kind, beside what was asked of the others."""
        if template not in self._kinds or not 0 <= count <= int(self._kinds[template].labels["most"]):
            raise Invalid(f"there cannot be {count} nodes {template!r} here", "the option `kinds` says how many")
        self._count_by_kind[template] = count
        bundles = [
            _make_bundle(self._kinds[name])
            for name, kind_count in sorted(self._count_by_kind.items())
            for _ in range(kind_count)
        ]
        bundles_text = json.dumps(bundles, sort_keys=True)
        if self._last_request[0] == bundles_text and self._was_accepted():
            return
        request_number = str(time.time_ns())
        job_id = f"falaj-scale-{request_number}"
        command_words = " ".join(map(shlex.quote, ("-c", _SCALE_PROGRAM, request_number, bundles_text)))
        self._call_api(
            "POST", "/api/jobs/", json={"entrypoint": f"{self._python} {command_words}", "submission_id": job_id}
        )
        self._last_request = (bundles_text, job_id)

    def retire(self, nodes: Sequence[str]) -> None:
        """Ray gives back what idles beyond what is asked for."""

    def _was_accepted(self) -> bool:
        """False when the job that asked has failed; what it leaves behind is removed."""
        try:
            status = str(self._call_api("GET", f"/api/jobs/{self._last_request[1]}").get("status"))
        except NotFound:
            return True
        if status in ("SUCCEEDED", "FAILED", "STOPPED"):
            self._call_api("DELETE", f"/api/jobs/{self._last_request[1]}")
        return status not in ("FAILED", "STOPPED")


def get_node_kind(labels: Mapping[str, str]) -> str:
    """The kind a node says it is of."""
    return labels.get("ray.io/node-group") or labels.get("template", "")


def _make_bundle(kind: NodeInfo) -> dict[str, float]:
    """All of a node. Not its memory: Ray keeps a part of that for itself, and none would be large enough."""
    other_amounts = {name: float(amount) for name, amount in kind.amounts.items() if name not in ("cpu", "memory")}
    amounts = {"CPU": kind.amounts["cpu"] / 1000, "GPU": float(len(kind.devices)), **other_amounts}
    return {name: amount for name, amount in amounts.items() if amount}
