"""Attempts as jobs of an existing Ray cluster: `ray:https://head:8265?token=env:RAY_AUTH_TOKEN`.

Everything goes through the dashboard's HTTP interface: no `import ray` here, so the cluster may run any version of it.
A job runs `ray_driver.py`, which is sent along with the launcher; what it is to do, secrets too, and what it is told
later travel as keys of the cluster's own store, which the driver takes out as it reads them: none of it lies on a disk.

Whoever reaches a Ray cluster can run anything on it. So the address is HTTPS, or loopback behind a tunnel, and a
cluster that answers without a token is refused. `insecure=loopback` lifts that on this very machine only.
"""

import hashlib
import io
import json
import re
import shlex
import ssl
import threading
import time
import zipfile
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx

from falaj.backends.node_kinds import add_kind_labels, read_node_kinds
from falaj.backends.ray_scaling import RayScaling, get_node_kind
from falaj.core.credential import read_credential
from falaj.core.errors import Conflict, Denied, Invalid, NotFound, Unavailable
from falaj.core.executor import (
    FAILED,
    FINISHED_PHASES,
    LOG_END,
    LOST,
    RUNNING,
    SUCCEEDED,
    UNKNOWN,
    WAITING,
    Attempt,
    AttemptStatus,
    Device,
    LogChunk,
    NodeInfo,
    SlotExitStatus,
    build_launcher_environment,
    rendezvous_port,
)

REQUEST_TIMEOUT_S = 30.0
_KNOWN_OPTIONS = ("token", "ca", "insecure", "python", "kinds", "shared")
_LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
_ATTEMPT_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,49}", re.ASCII)
_EXITS_PATTERN = re.compile(r"^falaj-exits (\{.*\})$", re.MULTILINE)
_FORCE_STOP_DELAY_S = 20.0
_PHASE_BY_STATUS = {"PENDING": WAITING, "RUNNING": RUNNING, "SUCCEEDED": SUCCEEDED, "FAILED": FAILED, "STOPPED": FAILED}
_FIXED_TIMESTAMP = (1980, 1, 1, 0, 0, 0)


class RayExecutor(RayScaling):
    """The executor port over the Ray Jobs API."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        url_parts = urlsplit(url.removeprefix("ray:"))
        option_values = dict(parse_qsl(url_parts.query)) | {name: str(value) for name, value in options.items()}
        if unknown_names := sorted(set(option_values) - set(_KNOWN_OPTIONS)):
            raise Invalid(f"ray: does not know {', '.join(unknown_names)}", f"it knows {', '.join(_KNOWN_OPTIONS)}")
        super().__init__(read_node_kinds(option_values.get("kinds", "")))
        is_loopback = url_parts.hostname in _LOOPBACK_HOSTS
        self._python = shlex.quote(option_values.get("python", "python"))
        if (
            url_parts.scheme not in ("http", "https")
            or not url_parts.hostname
            or (url_parts.scheme == "http" and not is_loopback)
        ):
            raise Invalid("ray: needs an https address, or http on loopback", "for example ray:https://head:8265")
        if option_values.get("insecure", "loopback") != "loopback":
            raise Invalid(f"ray: insecure is {option_values['insecure']!r:.40}", "insecure=loopback, or leave it out")
        if option_values.get("shared", "tenants") != "tenants":
            raise Invalid(f"ray: shared is {option_values['shared']!r:.40}", "shared=tenants, or leave it out")
        self._allows_no_token = "insecure" in option_values and is_loopback
        if not option_values.get("token") and not self._allows_no_token:
            raise Invalid("ray: needs the cluster's token", "ray:https://head:8265?token=env:RAY_AUTH_TOKEN")
        token = option_values.get("token", "")
        # An option may be the token itself, from the shelf of secrets; an address is printed, and never holds it.
        if token and ("token" not in options or token.startswith(("env:", "file:"))):
            token = read_credential(token, "token")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            ssl_context = ssl.create_default_context(cafile=option_values.get("ca") or None)
        except OSError as error:
            raise Invalid(f"ray: the certificate cannot be used: {error}", "ca is a PEM file of authorities") from None
        base_url = f"{url_parts.scheme}://{url_parts.netloc}"
        self._http_client = httpx.Client(
            base_url=base_url, headers=headers, verify=ssl_context, timeout=REQUEST_TIMEOUT_S, trust_env=False
        )
        self._is_token_required = self._allows_no_token
        self._force_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def capacity(self) -> Sequence[NodeInfo]:
        """Every node that lives, with what the placement groups of others hold of it."""
        nodes_response = self._call_api("GET", "/api/v0/nodes", params={"detail": "1", "limit": "10000"})
        alive_nodes = {
            str(plain_node["node_id"]): plain_node
            for plain_node in _read_result_rows(nodes_response)
            if plain_node.get("state") == "ALIVE"
        }
        held_by_node = self._read_foreign_use()
        node_infos = [
            _to_node_info(plain_node, held_by_node.get(node, []))
            for node, plain_node in sorted(alive_nodes.items(), key=lambda pair: _get_node_name(pair[1]))
        ]
        return [add_kind_labels(plain_node, self._kinds, get_node_kind(plain_node.labels)) for plain_node in node_infos]

    def launch(self, attempt: Attempt) -> str:
        """Submit it under its own id, which Ray takes once."""
        _require_valid_attempt(attempt)
        if (job := self._find_job(attempt.id)) is None:
            self._require_nodes(attempt)
            package = self._send_package(attempt)
            body = {
                "entrypoint": f"{self._python} ray_driver.py {attempt.id}",
                "submission_id": attempt.id,
                "runtime_env": {"working_dir": package},
                "metadata": {"falaj": "attempt", "slots": str(len(attempt.slots))},
            }
            try:
                self._call_api("POST", "/api/jobs/", json=body)
            except (Invalid, Unavailable):
                # Somebody else was a moment faster, or the answer got lost on its way.
                if self._find_job(attempt.id) is None:
                    raise
        if job is None or _PHASE_BY_STATUS.get(str(job.get("status"))) not in FINISHED_PHASES:
            # Said again, it is thrown away by a driver that has it.
            self._send_message(attempt.id, "orders", _make_orders(attempt))
        return attempt.id

    def poll(self, handles: Sequence[str]) -> Sequence[AttemptStatus]:
        """What became of each. What was told to stop and outlived its grace is ended by force here."""
        statuses = []
        for handle in handles:
            job = self._find_job(handle)
            if job and job.get("status") == "FAILED" and not _EXITS_PATTERN.search(str(job.get("message"))):
                job["message"] = f"{job.get('message')}\n{self._read_job_log(handle)}"
            status = _to_attempt_status(handle, job) if job is not None else AttemptStatus(handle, UNKNOWN)
            if status.phase in (*FINISHED_PHASES, UNKNOWN):
                self._force_at.pop(handle, None)
            elif time.time() > self._force_at.get(handle, float("inf")):
                self._call_api("POST", f"/api/jobs/{handle}/stop")
            statuses.append(status)
        return statuses

    def checkpoint(self, handle: str) -> None:
        """Tell the driver, which tells the launchers."""
        if self.poll([handle])[0].phase == RUNNING:
            self._send_message(handle, "checkpoint", {"at": time.time()})

    def stop(self, handle: str, grace_s: float) -> None:
        """Tell the driver, which tells the launchers; force follows from `poll`."""
        if self.poll([handle])[0].phase in (*FINISHED_PHASES, UNKNOWN):
            return
        with self._lock:
            self._force_at.setdefault(handle, time.time() + grace_s + _FORCE_STOP_DELAY_S)
        self._send_message(handle, "stop", {"grace_s": grace_s})

    def logs(self, handle: str, slot: int, after: str = "", limit: int = 1000) -> LogChunk:
        """Lines of one slot. The cursor counts them: Ray gives a job's log whole."""
        job = self._find_job(handle)
        if job is None or not 0 <= slot < _count_slots(job):
            raise NotFound(f"Ray ran no slot {slot} of {handle[:80]!r} for us", "it was forgotten, or ran elsewhere")
        if not (after or "0").isdigit() and after != LOG_END:
            raise Invalid("this is no cursor of a log", "begin again without one")
        is_over = _PHASE_BY_STATUS.get(str(job.get("status"))) in FINISHED_PHASES
        text = self._read_job_log(handle)
        complete_text = text if is_over else text[: text.rfind("\n") + 1]
        line_prefix = f"{slot}|"
        lines = [line.removeprefix(line_prefix) for line in complete_text.split("\n") if line.startswith(line_prefix)]
        if is_over and not lines and not _EXITS_PATTERN.search(text):
            lines = text.splitlines()
        start_line = max(0, len(lines) - limit) if after == LOG_END else int(after or "0")
        page = lines[start_line : start_line + limit]
        return LogChunk(tuple(page), str(start_line + len(page)), is_over and start_line + len(page) >= len(lines))

    def forget(self, handle: str) -> None:
        """Remove the job from Ray's list."""
        phase = self.poll([handle])[0].phase
        if phase == UNKNOWN:
            return
        if phase not in FINISHED_PHASES:
            raise Conflict(f"the attempt {handle!r} still runs", "stop it first")
        self._call_api("DELETE", f"/api/jobs/{handle}")

    def close(self) -> None:
        """Drop the connections; attempts run on."""
        self._http_client.close()

    def _find_job(self, handle: str) -> dict[str, Any] | None:
        if not _ATTEMPT_ID_PATTERN.fullmatch(handle):
            return None
        try:
            job = self._call_api("GET", f"/api/jobs/{handle}")
        except NotFound:
            return None
        return job if (job.get("metadata") or {}).get("falaj") == "attempt" else None

    def _read_job_log(self, handle: str) -> str:
        return str(self._call_api("GET", f"/api/jobs/{handle}/logs").get("logs") or "")

    def _require_nodes(self, attempt: Attempt) -> None:
        nodes = {node.name for node in self.capacity()}
        if missing_nodes := sorted({slot.node for slot in attempt.slots} - nodes):
            # It may have died since it was chosen: another will be.
            raise Conflict(f"Ray has no node {missing_nodes[0]!r}", f"it has {', '.join(sorted(nodes)[:10])}")

    def _send_package(self, attempt: Attempt) -> str:
        """The driver and the launcher, sent once for all attempts that use the same."""
        data = _build_package(attempt.launcher)
        name = f"_ray_pkg_{hashlib.sha256(data).hexdigest()[:32]}.zip"
        try:
            self._call_api("GET", f"/api/packages/gcs/{name}")
        except NotFound:
            self._call_api("PUT", f"/api/packages/gcs/{name}", content=data)
        return f"gcs://{name}"

    def _send_message(self, handle: str, message_name: str, body: Mapping[str, Any]) -> None:
        self._call_api("PUT", f"/api/packages/gcs/falaj_{handle}_{message_name}.zip", content=json.dumps(body).encode())

    def _read_foreign_use(self) -> dict[str, list[Mapping[str, float]]]:
        """What placement groups that are not ours hold, by node; tasks outside of groups are not told of by Ray."""
        use_by_node: dict[str, list[Mapping[str, float]]] = {}
        for placement_group in _read_result_rows(
            self._call_api("GET", "/api/v0/placement_groups", params={"detail": "1", "limit": "10000"})
        ):
            if placement_group.get("state") == "CREATED" and not str(placement_group.get("name", "")).startswith(
                "falaj:"
            ):
                for bundle in placement_group.get("bundles") or ():
                    resources = bundle.get("unit_resources") or {}
                    use_by_node.setdefault(str(bundle.get("node_id")), []).append(resources)
        return use_by_node

    def _call_api(self, method: str, path: str, **request_options: Any) -> dict[str, Any]:
        try:
            if not self._is_token_required:
                self._require_token_check()
            response = self._http_client.request(method, path, **request_options)
        except httpx.HTTPError as error:
            raise Unavailable(f"Ray does not answer ({type(error).__name__})", "is its dashboard running?") from None
        if response.status_code == 200:
            return _read_json_object(response)
        response_text = " ".join(response.text.split())[-300:] or f"status {response.status_code}"
        if response.status_code in (401, 403):
            raise Denied("Ray refuses our token", "give the token of this cluster: token=env:RAY_AUTH_TOKEN")
        if response.status_code == 404:
            raise NotFound(f"Ray does not know it: {response_text}", "it may have been forgotten")
        if response.status_code == 400:
            raise Invalid(f"Ray refuses: {response_text}", "see the message")
        raise Unavailable(f"Ray failed: {response_text}", "the same call may work later")

    def _require_token_check(self) -> None:
        """A cluster that answers a stranger runs what strangers send."""
        unauthenticated_request = self._http_client.build_request("GET", "/api/jobs/falaj-stranger")
        unauthenticated_request.headers.pop("Authorization", None)
        if self._http_client.send(unauthenticated_request).status_code not in (401, 403):
            raise Invalid("this Ray cluster answers without a token", "start it with RAY_AUTH_MODE=token")
        self._is_token_required = True


def _require_valid_attempt(attempt: Attempt) -> None:
    if not _ATTEMPT_ID_PATTERN.fullmatch(attempt.id):
        raise Invalid(f"{attempt.id[:60]!r} is no id of an attempt", "letters, digits and dashes, at most 50")
    if not attempt.slots or not attempt.launcher:
        raise Invalid("ray: needs slots and the launcher", "the platform gives both")
    if attempt.folder:
        raise Invalid("ray: shares no folder with its nodes", "leave the folder empty; launchers call the platform")


def _build_package(launcher: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        driver = (files("falaj.backends") / "ray_driver.py").read_bytes()
        for name, data in (("ray_driver.py", driver), ("falaj-worker.pyz", launcher)):
            archive.writestr(zipfile.ZipInfo(name, _FIXED_TIMESTAMP), data)
    return buffer.getvalue()


def _make_orders(attempt: Attempt) -> dict[str, Any]:
    """What the driver is to do."""
    slots = []
    for slot in attempt.slots:
        bundle = {"CPU": slot.amounts.get("cpu", 0) / 1000, "memory": slot.amounts.get("memory", 0) << 20}
        bundle |= {name: amount for name, amount in slot.amounts.items() if name not in ("cpu", "memory")}
        bundle["GPU"] = len(slot.devices) * slot.milli / 1000
        resources = {name: amount for name, amount in bundle.items() if amount}
        slots.append({"host": slot.node, "bundle": resources | {f"node:{slot.node}": 0.001}})
    slot_documents = attempt.context.get("slots")
    slots_with_hosts = (
        [{**slot_document, "host": slot_document["node"]} for slot_document in slot_documents]
        if isinstance(slot_documents, list)
        else slot_documents
    )
    rendezvous = {"host": "", "port": rendezvous_port(attempt.id)}
    context = {"rendezvous": rendezvous, **attempt.context, "slots": slots_with_hosts, "folder": ""}
    return {"slots": slots, "context": context, "env": build_launcher_environment(attempt)}


def _to_attempt_status(handle: str, job: Mapping[str, Any]) -> AttemptStatus:
    phase = _PHASE_BY_STATUS.get(str(job.get("status")), RUNNING)
    started, ended = (float(job.get(name) or 0) / 1000 for name in ("start_time", "end_time"))
    if phase not in FINISHED_PHASES:
        return AttemptStatus(handle, phase, started=started if phase == RUNNING else 0.0)
    if phase == SUCCEEDED:
        exits = tuple(SlotExitStatus(index, 0) for index in range(_count_slots(job)))
        return AttemptStatus(handle, SUCCEEDED, exits, started, ended)
    message = str(job.get("message") or "")
    if (exit_lines := _EXITS_PATTERN.findall(message)) and (exit_facts := json.loads(exit_lines[-1])):
        exits = tuple(
            SlotExitStatus(int(exit_fact["index"]), int(exit_fact["code"]), str(exit_fact["reason"]))
            for exit_fact in exit_facts["exits"]
        )
        reason = exit_facts["lost"] or next(
            (f"slot {slot_exit.index}: {slot_exit.reason}" for slot_exit in exits if slot_exit.code), ""
        )
        return AttemptStatus(handle, LOST if exit_facts["lost"] else FAILED, exits, started, ended, reason)
    if job.get("status") == "STOPPED":
        exits = tuple(SlotExitStatus(index, 137, "ended by force") for index in range(_count_slots(job)))
        return AttemptStatus(handle, FAILED, exits, started, ended, "ended by force")
    last_line = (message.strip().splitlines() or ["Ray lost the job"])[-1][:500]
    # What ended by itself, or never could begin, will do so again; what else is gone went with its node.
    ended_by_itself = job.get("driver_exit_code") is not None or "runtime_env" in message
    return AttemptStatus(handle, FAILED if ended_by_itself else LOST, (), started, ended, last_line)


def _to_node_info(node: Mapping[str, Any], foreign_bundles: Sequence[Mapping[str, float]]) -> NodeInfo:
    total: Mapping[str, float] = node.get("resources_total") or {}
    model = next((name.partition(":")[2] for name in total if name.startswith("accelerator_type:")), "gpu")
    special_names = {name for name in total if ":" in name} | {"CPU", "GPU", "memory", "object_store_memory"}
    gpus = int(total.get("GPU", 0))
    taken_gpus = min(gpus, -int(-sum(bundle.get("GPU", 0) for bundle in foreign_bundles) // 1))
    taken = {
        "cpu": int(1000 * sum(bundle.get("CPU", 0) for bundle in foreign_bundles)),
        "memory": int(sum(bundle.get("memory", 0) for bundle in foreign_bundles)) >> 20,
    }
    return NodeInfo(
        _get_node_name(node),
        {
            "cpu": int(1000 * total.get("CPU", 0)),
            "memory": int(total.get("memory", 0)) >> 20,
            **{name: int(amount) for name, amount in total.items() if name not in special_names},
        },
        devices=tuple(Device(index, model) for index in range(gpus)),
        labels={
            **{str(label_name): str(label_value) for label_name, label_value in (node.get("labels") or {}).items()},
            "ray": str(node.get("node_id")),
        },
        taken={name: amount for name, amount in taken.items() if amount},
        taken_devices=tuple(range(gpus - taken_gpus, gpus)),
    )


def _get_node_name(node: Mapping[str, Any]) -> str:
    return str(node.get("node_ip"))


def _count_slots(job: Mapping[str, Any]) -> int:
    slots_text = str((job.get("metadata") or {}).get("slots", "1"))
    return int(slots_text) if slots_text.isdigit() else 1


def _read_result_rows(response_body: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        return list(response_body["data"]["result"]["result"])
    except (KeyError, TypeError):
        raise Unavailable("Ray answered in a form that is not known", "is this a Ray dashboard?") from None


def _read_json_object(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json() if response.content else {}
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
