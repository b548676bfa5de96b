"""Small controllers and kubelets over the protocol server: Jobs become pods, pods become processes of this machine.

A process sees the volumes of its pod under a folder of its own: paths in its command and environment are rewritten.
Nothing is isolated.
"""

import base64
import contextlib
import datetime as dt
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from tests.servers.kube_protocol import KubeProtocol, now

Json = dict[str, Any]
PODS, JOBS, JOBSETS = "/api/v1/pods", "/apis/batch/v1/jobs", "/apis/jobset.x-k8s.io/v1alpha2/jobsets"


class Kubelets:
    """Runs what the store of a server holds, until closed."""

    def __init__(self, kube: KubeProtocol) -> None:
        self.kube, self.store = kube, kube.store
        self._running: dict[str, _Running] = {}
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._thread.join(10)
        for running in self._running.values():
            running.kill()
            running.thread.join(10)

    def lose(self, node: str) -> None:
        """The node is dead: its processes are gone, nobody says so, and the taint manager evicts its pods."""
        for key, running in list(self._running.items()):
            if running.pod["spec"].get("nodeName") == node:
                running.silent = True
                running.kill()
                because = {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "DeletionByTaintManager",
                    "message": "Taint manager: deleting due to NoExecute taint",
                }
                self.store.change(
                    PODS, key, lambda one, c=because: one["status"].setdefault("conditions", []).append(c)
                )
                self.store.delete(PODS, key, 30)

    def _follow(self) -> None:
        seen = 0
        while not self.kube.closed:
            with self.store.changed:
                news = [one for one in self.store.events if one.version > seen]
                if not news:
                    self.store.changed.wait(0.5)
            for event in news:
                seen = event.version
                key = f"{event.object['metadata'].get('namespace', '')}/{event.object['metadata']['name']}"
                if event.type == "ADDED" and event.place == JOBSETS:
                    self._make_jobs(event.object)
                elif event.type == "ADDED" and event.place == JOBS and not event.object["spec"].get("suspend"):
                    self._make_pod(event.object)
                elif event.type == "ADDED" and event.place == PODS:
                    self._running[key] = _Running(self, key, event.object)
                elif event.type == "MODIFIED" and event.place == PODS and key in self._running:
                    self._running[key].hear(event.object)
                elif event.type == "DELETED" and event.place == PODS:
                    self._fail_job(event.object)

    def _make_jobs(self, jobset: Json) -> None:
        about = jobset["metadata"]
        for part in jobset["spec"]["replicatedJobs"]:
            meta = {"name": f"{about['name']}-{part['name']}-0", "labels": part["template"]["metadata"]["labels"]}
            meta["ownerReferences"] = [
                {"apiVersion": jobset["apiVersion"], "kind": "JobSet", "name": about["name"], "uid": about["uid"]}
            ]
            self.store.create(
                JOBS, about["namespace"], {"metadata": meta, "spec": part["template"]["spec"], "status": {}}
            )

    def _make_pod(self, job: Json) -> None:
        about, template = job["metadata"], job["spec"]["template"]
        meta = {**template["metadata"], "generateName": f"{about['name']}-"}
        meta["ownerReferences"] = [
            {"apiVersion": "batch/v1", "kind": "Job", "name": about["name"], "uid": about["uid"]}
        ]
        terms = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        node = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
        spec = {**template["spec"], "nodeName": node}
        self.store.create(PODS, about["namespace"], {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})

    def _fail_job(self, pod: Json) -> None:
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['ownerReferences'][0]['name']}"
        failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
        with contextlib.suppress(Exception):
            self.store.change(
                JOBS, name, lambda one: one.setdefault("status", {}).setdefault("conditions", []).append(failed)
            )


class _Running:
    """One pod's container."""

    def __init__(self, kubelets: Kubelets, key: str, pod: Json) -> None:
        self.pod, self.silent = pod, False
        self._kubelets, self._key = kubelets, key
        self._folder = kubelets.kube.folder / pod["metadata"]["name"]
        self._process: subprocess.Popen[bytes] | None = None
        self._told = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def hear(self, pod: Json) -> None:
        self.pod = pod
        self._show_signals()
        if pod["metadata"].get("deletionTimestamp") and not self._told and not self.silent:
            self._told = True
            due = dt.datetime.fromisoformat(pod["metadata"]["deletionTimestamp"]).timestamp()
            threading.Thread(target=self._end, args=(due,), daemon=True).start()

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _end(self, due: float) -> None:
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.1, due - time.time()))
            self.kill()
            self.thread.join(10)
        self._kubelets.store.remove(PODS, self._key)

    def _run(self) -> None:
        container = self.pod["spec"]["containers"][0]
        mounts = self._mount(container)
        env = {one["name"]: self._value(one, mounts) for one in container["env"]}
        words = [_inside(word, mounts) for word in container["command"]]
        started = {"startedAt": now()}
        lines = self._kubelets.kube.logs.setdefault(self.pod["metadata"]["name"], [])
        self._process = subprocess.Popen(
            words,
            env={"PATH": os.environ["PATH"], "TMPDIR": mounts["/tmp"], **env},
            cwd=mounts["/scratch"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._say("Running", {"running": started})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            lines.append(f"{dt.datetime.now(dt.UTC).isoformat().replace('+00:00', 'Z')} ".encode() + line)
        self._process.stdout.close()
        code = self._process.wait()
        if not self.silent:
            message = Path(mounts["/dev/termination-log"])
            words_left = {"message": message.read_text()} if message.exists() else {}
            how = {"exitCode": code if code >= 0 else 128 - code, "reason": "Error" if code else "Completed"}
            self._say(
                "Failed" if code else "Succeeded", {"terminated": {**started, **how, **words_left, "finishedAt": now()}}
            )

    def _say(self, phase: str, state: Json) -> None:
        status = {
            "phase": phase,
            "containerStatuses": [{"name": self.pod["spec"]["containers"][0]["name"], "state": state}],
        }
        with contextlib.suppress(Exception):
            self._kubelets.store.change(PODS, self._key, lambda one: one["status"].update(status))

    def _mount(self, container: Json) -> dict[str, str]:
        volumes = {one["name"]: one for one in self.pod["spec"]["volumes"]}
        mounts = {"/dev/termination-log": str(self._folder / "last-words")}
        for mount in container["volumeMounts"]:
            folder = self._folder / mount["name"]
            folder.mkdir(parents=True, exist_ok=True)
            mounts[mount["mountPath"]] = str(folder)
            for source in volumes[mount["name"]].get("projected", {}).get("sources", ()):
                self._project(folder, source)
        self._show_signals()
        return mounts

    def _project(self, folder: Path, source: Json) -> None:
        for kind, place, field in (("secret", "secrets", "data"), ("configMap", "configmaps", "binaryData")):
            if kind in source:
                held = self._object(place, source[kind]["name"])[field]
                names = [one["key"] for one in source[kind].get("items", ())] or list(held)
                for name in names:
                    (folder / name).write_bytes(base64.b64decode(held[name]))

    def _show_signals(self) -> None:
        """What the downward API shows."""
        signals = self._folder / "falaj/signals"
        signals.mkdir(parents=True, exist_ok=True)
        for name in ("stop", "checkpoint"):
            text = (self.pod["metadata"].get("annotations") or {}).get(f"falaj.dev/{name}", "")
            draft = self._folder / f"{name}.draft"
            draft.write_text(text)
            draft.replace(signals / name)

    def _value(self, one: Json, mounts: dict[str, str]) -> str:
        if "value" in one:
            return _inside(one["value"], mounts)
        ref = one["valueFrom"]["secretKeyRef"]
        return base64.b64decode(self._object("secrets", ref["name"])["data"][ref["key"]]).decode()

    def _object(self, kind: str, name: str) -> Json:
        return self._kubelets.store.get(f"/api/v1/{kind}", f"{self.pod['metadata']['namespace']}/{name}")


def _inside(word: str, mounts: dict[str, str]) -> str:
    for path, folder in mounts.items():
        if word == path or word.startswith(f"{path}/"):
            return folder + word[len(path) :]
    return word
