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

from falaj.backends.node_kinds import read_kinds, with_kind
from falaj.backends.ray_scale import RayScaling, kind_of
from falaj.core.credential import credential
from falaj.core.errors import Conflict, Denied, Invalid, NotFound, Unavailable
from falaj.core.execute import (
    END,
    FAILED,
    LOST,
    OVER,
    RUNNING,
    SUCCEEDED,
    UNKNOWN,
    WAITING,
    Attempt,
    Device,
    LogChunk,
    NodeFacts,
    SlotExit,
    Status,
    launcher_environment,
    meeting_port,
)

TIMEOUT_S = 30.0
_KNOWN = ("token", "ca", "insecure", "python", "kinds", "shared")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,49}", re.ASCII)
_EXITS = re.compile(r"^falaj-exits (\{.*\})$", re.MULTILINE)
_FORCE_AFTER_S = 20.0
_PHASES = {"PENDING": WAITING, "RUNNING": RUNNING, "SUCCEEDED": SUCCEEDED, "FAILED": FAILED, "STOPPED": FAILED}
_LONG_AGO = (1980, 1, 1, 0, 0, 0)


class RayExecutor(RayScaling):
    """The executor port over the Ray Jobs API."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        parts = urlsplit(url.removeprefix("ray:"))
        given = dict(parse_qsl(parts.query)) | {name: str(value) for name, value in options.items()}
        if strange := sorted(set(given) - set(_KNOWN)):
            raise Invalid(f"ray: does not know {', '.join(strange)}", f"it knows {', '.join(_KNOWN)}")
        super().__init__(read_kinds(given.get("kinds", "")))
        here = parts.hostname in _LOOPBACK
        self._python = shlex.quote(given.get("python", "python"))
        if parts.scheme not in ("http", "https") or not parts.hostname or (parts.scheme == "http" and not here):
            raise Invalid("ray: needs an https address, or http on loopback", "for example ray:https://head:8265")
        if given.get("insecure", "loopback") != "loopback":
            raise Invalid(f"ray: insecure is {given['insecure']!r:.40}", "insecure=loopback, or leave it out")
        if given.get("shared", "tenants") != "tenants":
            raise Invalid(f"ray: shared is {given['shared']!r:.40}", "shared=tenants, or leave it out")
        self._bare = "insecure" in given and here
        if not given.get("token") and not self._bare:
            raise Invalid("ray: needs the cluster's token", "ray:https://head:8265?token=env:RAY_AUTH_TOKEN")
        token = given.get("token", "")
        # An option may be the token itself, from the shelf of secrets; an address is printed, and never holds it.
        if token and ("token" not in options or token.startswith(("env:", "file:"))):
            token = credential(token, "token")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            context = ssl.create_default_context(cafile=given.get("ca") or None)
        except OSError as error:
            raise Invalid(f"ray: the certificate cannot be used: {error}", "ca is a PEM file of authorities") from None
        base = f"{parts.scheme}://{parts.netloc}"
        self._http = httpx.Client(base_url=base, headers=headers, verify=context, timeout=TIMEOUT_S, trust_env=False)
        self._trusted = self._bare
        self._force_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def capacity(self) -> Sequence[NodeFacts]:
        """Every node that lives, with what the placement groups of others hold of it."""
        found = self._ask("GET", "/api/v0/nodes", params={"detail": "1", "limit": "10000"})
        nodes = {str(one["node_id"]): one for one in _rows(found) if one.get("state") == "ALIVE"}
        held = self._held_by_others()
        told = [_facts(one, held.get(node, [])) for node, one in sorted(nodes.items(), key=lambda pair: _name(pair[1]))]
        return [with_kind(one, self._kinds, kind_of(one.labels)) for one in told]

    def launch(self, attempt: Attempt) -> str:
        """Submit it under its own id, which Ray takes once."""
        _check(attempt)
        if (job := self._job(attempt.id)) is None:
            self._check_nodes(attempt)
            package = self._send_package(attempt)
            body = {
                "entrypoint": f"{self._python} ray_driver.py {attempt.id}",
                "submission_id": attempt.id,
                "runtime_env": {"working_dir": package},
                "metadata": {"falaj": "attempt", "slots": str(len(attempt.slots))},
            }
            try:
                self._ask("POST", "/api/jobs/", json=body)
            except (Invalid, Unavailable):
                # Somebody else was a moment faster, or the answer got lost on its way.
                if self._job(attempt.id) is None:
                    raise
        if job is None or _PHASES.get(str(job.get("status"))) not in OVER:
            # Said again, it is thrown away by a driver that has it.
            self._say(attempt.id, "orders", _orders(attempt))
        return attempt.id

    def poll(self, handles: Sequence[str]) -> Sequence[Status]:
        """What became of each. What was told to stop and outlived its grace is ended by force here."""
        found = []
        for handle in handles:
            job = self._job(handle)
            if job and job.get("status") == "FAILED" and not _EXITS.search(str(job.get("message"))):
                job["message"] = f"{job.get('message')}\n{self._log(handle)}"
            status = _status(handle, job) if job is not None else Status(handle, UNKNOWN)
            if status.phase in (*OVER, UNKNOWN):
                self._force_at.pop(handle, None)
            elif time.time() > self._force_at.get(handle, float("inf")):
                self._ask("POST", f"/api/jobs/{handle}/stop")
            found.append(status)
        return found

    def checkpoint(self, handle: str) -> None:
        """Tell the driver, which tells the launchers."""
        if self.poll([handle])[0].phase == RUNNING:
            self._say(handle, "checkpoint", {"at": time.time()})

    def stop(self, handle: str, grace_s: float) -> None:
        """Tell the driver, which tells the launchers; force follows from `poll`."""
        if self.poll([handle])[0].phase in (*OVER, UNKNOWN):
            return
        with self._lock:
            self._force_at.setdefault(handle, time.time() + grace_s + _FORCE_AFTER_S)
        self._say(handle, "stop", {"grace_s": grace_s})

    def logs(self, handle: str, slot: int, after: str = "", limit: int = 1000) -> LogChunk:
        """Lines of one slot. The cursor counts them: Ray gives a job's log whole."""
        job = self._job(handle)
        if job is None or not 0 <= slot < _num_slots(job):
            raise NotFound(f"Ray ran no slot {slot} of {handle[:80]!r} for us", "it was forgotten, or ran elsewhere")
        if not (after or "0").isdigit() and after != END:
            raise Invalid("this is no cursor of a log", "begin again without one")
        over = _PHASES.get(str(job.get("status"))) in OVER
        text = self._log(handle)
        whole = text if over else text[: text.rfind("\n") + 1]
        mark = f"{slot}|"
        lines = [line.removeprefix(mark) for line in whole.split("\n") if line.startswith(mark)]
        if over and not lines and not _EXITS.search(text):
            lines = text.splitlines()
        start = max(0, len(lines) - limit) if after == END else int(after or "0")
        part = lines[start : start + limit]
        return LogChunk(tuple(part), str(start + len(part)), over and start + len(part) >= len(lines))

    def forget(self, handle: str) -> None:
        """Remove the job from Ray's list."""
        phase = self.poll([handle])[0].phase
        if phase == UNKNOWN:
            return
        if phase not in OVER:
            raise Conflict(f"the attempt {handle!r} still runs", "stop it first")
        self._ask("DELETE", f"/api/jobs/{handle}")

    def close(self) -> None:
        """Drop the connections; attempts run on."""
        self._http.close()

    def _job(self, handle: str) -> dict[str, Any] | None:
        if not _ID.fullmatch(handle):
            return None
        try:
            job = self._ask("GET", f"/api/jobs/{handle}")
        except NotFound:
            return None
        return job if (job.get("metadata") or {}).get("falaj") == "attempt" else None

    def _log(self, handle: str) -> str:
        return str(self._ask("GET", f"/api/jobs/{handle}/logs").get("logs") or "")

    def _check_nodes(self, attempt: Attempt) -> None:
        nodes = {node.name for node in self.capacity()}
        if missing := sorted({slot.node for slot in attempt.slots} - nodes):
            # It may have died since it was chosen: another will be.
            raise Conflict(f"Ray has no node {missing[0]!r}", f"it has {', '.join(sorted(nodes)[:10])}")

    def _send_package(self, attempt: Attempt) -> str:
        """The driver and the launcher, sent once for all attempts that use the same."""
        data = _package(attempt.launcher)
        name = f"_ray_pkg_{hashlib.sha256(data).hexdigest()[:32]}.zip"
        try:
            self._ask("GET", f"/api/packages/gcs/{name}")
        except NotFound:
            self._ask("PUT", f"/api/packages/gcs/{name}", content=data)
        return f"gcs://{name}"

    def _say(self, handle: str, what: str, body: Mapping[str, Any]) -> None:
        self._ask("PUT", f"/api/packages/gcs/falaj_{handle}_{what}.zip", content=json.dumps(body).encode())

    def _held_by_others(self) -> dict[str, list[Mapping[str, float]]]:
        """What placement groups that are not ours hold, by node; tasks outside of groups are not told of by Ray."""
        found: dict[str, list[Mapping[str, float]]] = {}
        for group in _rows(self._ask("GET", "/api/v0/placement_groups", params={"detail": "1", "limit": "10000"})):
            if group.get("state") == "CREATED" and not str(group.get("name", "")).startswith("falaj:"):
                for bundle in group.get("bundles") or ():
                    held = bundle.get("unit_resources") or {}
                    found.setdefault(str(bundle.get("node_id")), []).append(held)
        return found

    def _ask(self, method: str, path: str, **how: Any) -> dict[str, Any]:
        try:
            if not self._trusted:
                self._refuse_bare()
            answer = self._http.request(method, path, **how)
        except httpx.HTTPError as error:
            raise Unavailable(f"Ray does not answer ({type(error).__name__})", "is its dashboard running?") from None
        if answer.status_code == 200:
            return _json(answer)
        said = " ".join(answer.text.split())[-300:] or f"status {answer.status_code}"
        if answer.status_code in (401, 403):
            raise Denied("Ray refuses our token", "give the token of this cluster: token=env:RAY_AUTH_TOKEN")
        if answer.status_code == 404:
            raise NotFound(f"Ray does not know it: {said}", "it may have been forgotten")
        if answer.status_code == 400:
            raise Invalid(f"Ray refuses: {said}", "see the message")
        raise Unavailable(f"Ray failed: {said}", "the same call may work later")

    def _refuse_bare(self) -> None:
        """A cluster that answers a stranger runs what strangers send."""
        stranger = self._http.build_request("GET", "/api/jobs/falaj-stranger")
        stranger.headers.pop("Authorization", None)
        if self._http.send(stranger).status_code not in (401, 403):
            raise Invalid("this Ray cluster answers without a token", "start it with RAY_AUTH_MODE=token")
        self._trusted = True


def _check(attempt: Attempt) -> None:
    if not _ID.fullmatch(attempt.id):
        raise Invalid(f"{attempt.id[:60]!r} is no id of an attempt", "letters, digits and dashes, at most 50")
    if not attempt.slots or not attempt.launcher:
        raise Invalid("ray: needs slots and the launcher", "the platform gives both")
    if attempt.folder:
        raise Invalid("ray: shares no folder with its nodes", "leave the folder empty; launchers call the platform")


def _package(launcher: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        driver = (files("falaj.backends") / "ray_driver.py").read_bytes()
        for name, data in (("ray_driver.py", driver), ("falaj-worker.pyz", launcher)):
            archive.writestr(zipfile.ZipInfo(name, _LONG_AGO), data)
    return made.getvalue()


def _orders(attempt: Attempt) -> dict[str, Any]:
    """What the driver is to do."""
    slots = []
    for slot in attempt.slots:
        bundle = {"CPU": slot.amounts.get("cpu", 0) / 1000, "memory": slot.amounts.get("memory", 0) << 20}
        bundle |= {name: amount for name, amount in slot.amounts.items() if name not in ("cpu", "memory")}
        bundle["GPU"] = len(slot.devices) * slot.milli / 1000
        held = {name: amount for name, amount in bundle.items() if amount}
        slots.append({"host": slot.node, "bundle": held | {f"node:{slot.node}": 0.001}})
    places = attempt.context.get("slots")
    hosts = [{**place, "host": place["node"]} for place in places] if isinstance(places, list) else places
    meeting = {"host": "", "port": meeting_port(attempt.id)}
    context = {"rendezvous": meeting, **attempt.context, "slots": hosts, "folder": ""}
    return {"slots": slots, "context": context, "env": launcher_environment(attempt)}


def _status(handle: str, job: Mapping[str, Any]) -> Status:
    phase = _PHASES.get(str(job.get("status")), RUNNING)
    started, ended = (float(job.get(name) or 0) / 1000 for name in ("start_time", "end_time"))
    if phase not in OVER:
        return Status(handle, phase, started=started if phase == RUNNING else 0.0)
    if phase == SUCCEEDED:
        exits = tuple(SlotExit(index, 0) for index in range(_num_slots(job)))
        return Status(handle, SUCCEEDED, exits, started, ended)
    message = str(job.get("message") or "")
    if (said := _EXITS.findall(message)) and (last := json.loads(said[-1])):
        exits = tuple(SlotExit(int(one["index"]), int(one["code"]), str(one["reason"])) for one in last["exits"])
        reason = last["lost"] or next((f"slot {e.index}: {e.reason}" for e in exits if e.code), "")
        return Status(handle, LOST if last["lost"] else FAILED, exits, started, ended, reason)
    if job.get("status") == "STOPPED":
        exits = tuple(SlotExit(index, 137, "ended by force") for index in range(_num_slots(job)))
        return Status(handle, FAILED, exits, started, ended, "ended by force")
    last_line = (message.strip().splitlines() or ["Ray lost the job"])[-1][:500]
    # What ended by itself, or never could begin, will do so again; what else is gone went with its node.
    own = job.get("driver_exit_code") is not None or "runtime_env" in message
    return Status(handle, FAILED if own else LOST, (), started, ended, last_line)


def _facts(node: Mapping[str, Any], held: Sequence[Mapping[str, float]]) -> NodeFacts:
    total: Mapping[str, float] = node.get("resources_total") or {}
    model = next((name.partition(":")[2] for name in total if name.startswith("accelerator_type:")), "gpu")
    special = {name for name in total if ":" in name} | {"CPU", "GPU", "memory", "object_store_memory"}
    gpus = int(total.get("GPU", 0))
    taken_gpus = min(gpus, -int(-sum(one.get("GPU", 0) for one in held) // 1))
    taken = {
        "cpu": int(1000 * sum(one.get("CPU", 0) for one in held)),
        "memory": int(sum(one.get("memory", 0) for one in held)) >> 20,
    }
    return NodeFacts(
        _name(node),
        {
            "cpu": int(1000 * total.get("CPU", 0)),
            "memory": int(total.get("memory", 0)) >> 20,
            **{name: int(amount) for name, amount in total.items() if name not in special},
        },
        devices=tuple(Device(index, model) for index in range(gpus)),
        labels={**{str(k): str(v) for k, v in (node.get("labels") or {}).items()}, "ray": str(node.get("node_id"))},
        taken={name: amount for name, amount in taken.items() if amount},
        taken_devices=tuple(range(gpus - taken_gpus, gpus)),
    )


def _name(node: Mapping[str, Any]) -> str:
    return str(node.get("node_ip"))


def _num_slots(job: Mapping[str, Any]) -> int:
    said = str((job.get("metadata") or {}).get("slots", "1"))
    return int(said) if said.isdigit() else 1


def _rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        return list(answer["data"]["result"]["result"])
    except (KeyError, TypeError):
        raise Unavailable("Ray answered in a form that is not known", "is this a Ray dashboard?") from None


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json() if answer.content else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
