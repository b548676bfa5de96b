"""Two tenants on one real server: `bank` serves models by keys, `clinic` has a canary in its online features."""

import csv
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from tests.infer.models import _Kit
from tests.jobs.lab import until
from tests.people import enroll, enroll_tenant
from tests.replica import Replica
from tests.serve.laptop import Laptop

CANARY = "HIV positive, Amal Rashed 784-1984"
ENDPOINT = "endpoint:fraud/score"
PATIENTS = """from falaj.features import Entity, Feature, Service, Source, view

patient = Entity("ward/patient", keys={"id": "string"})
files = view("ward/files", patient, Source("push", event="at"), features=[Feature("note", "string")], owner="sara")
ward = Service("ward/all", [files], owner="sara")
"""
CUSTOMERS = """from falaj.features import Entity, Feature, Service, Source, on_demand, view

customer = Entity("fraud/customer", keys={"id": "string"})
balance = [Feature("balance", "float64")]
account = view("fraud/account", customer, Source("push", event="at"), features=balance, owner="mona")
@on_demand(inputs=[account["balance"]], features={"ran": "float64", "escaped": "float64"})
PROBE
scorer = Service("fraud/scorer", [account["balance"], probe], owner="mona")
"""


class Ground:
    """Clients of bank's engineer (mona) and data scientist (amal), and of clinic's (sara)."""

    def __init__(self, folder: Path, server: Replica) -> None:
        self.folder, self.server = folder, server
        admin = server.as_()
        bosses = {tenant: enroll_tenant(admin, tenant, f"{tenant}-boss") for tenant in ("bank", "clinic")}
        admin.clusters.change("local", {"tenants": "bank,clinic"})
        bank, clinic = (server.as_(token) for token in bosses.values())
        self.tokens = {
            "mona": enroll(bank, "mona", ("ml-engineer", "data-scientist"), jurisdiction="AE"),
            "amal": enroll(bank, "amal", ("data-scientist",), jurisdiction="AE"),
            "sara": enroll(clinic, "sara", ("data-scientist",), jurisdiction="AE"),
        }
        self.mona, self.amal, self.sara = (server.as_(token) for token in self.tokens.values())

    def push_canary(self) -> None:
        """Clinic's online features hold the canary."""
        self._apply(self.sara, "patients", PATIENTS)
        self.sara.features.push("view:ward/files", [{"id": "p1", "at": timestamp(), "note": CANARY}])
        assert self.sara.features.read("service:ward/all", {"id": ["p1"]}).columns["note"] == [CANARY]

    def apply_probe(self, probe: str) -> None:
        """Bank's service computes `ran` and `escaped` by the function `probe`; rows of two customers are there."""
        self._apply(self.mona, "customers", CUSTOMERS.replace("PROBE", probe))
        rows = [{"id": name, "at": timestamp(-1), "balance": 5.0} for name in ("c1", "c2")]
        self.mona.features.push("view:fraud/account", rows)

    def labels(self) -> Path:
        """Rows to build a training set for."""
        path = self.folder / "labels.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["id", "at", "fraud"], ["c1", timestamp(), 1], ["c2", timestamp(), 0]])
        return path

    def deploy(self) -> Any:
        """A replica that answers `balance_spans`, `ran` and `escaped` for keys; gives the endpoint."""
        history = self.mona.features.history(
            str(self.labels()), "service:fraud/scorer", name="dataset:fraud/train", moment="at"
        )
        kit = _Kit(1)
        kit.add("MatMul", "x", kit._keep(np.eye(3, dtype=np.float32)), out="y")
        folder = kit.save(self.folder / "model", [("x", "FP32", ("batch", 3))], [("y", "FP32", ("batch", 3))])
        model = self.mona.catalog.publish("model:fraud/scorer", str(folder), inputs={"train": history.published}).ref
        self.mona.serve.deploy(ENDPOINT, str(model), wait=True, cpus=0.1, memory="256MiB")
        return until(lambda: self.mona.serve.show(ENDPOINT), lambda view: view.url)

    def ask(self, view: Any) -> list[list[float]]:
        """What the endpoint answers for both customers."""
        import httpx

        tensor = {"name": "id", "datatype": "BYTES", "shape": [2], "data": ["c1", "c2"]}
        headers = {"Authorization": f"Bearer {self.tokens['mona']}"}
        response = httpx.post(f"{view.url}/infer", json={"inputs": [tensor]}, headers=headers, timeout=60)
        assert response.status_code == 200, response.text
        data = response.json()["outputs"][0]["data"]
        return [data[:3], data[3:]]

    def _apply(self, client: Any, name: str, text: str) -> None:
        path = self.folder / name / "definitions.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        client.features.apply(str(path), force=True)


@contextmanager
def ground(folder: Path, settings: dict[str, str] | None = None) -> Iterator[Ground]:
    """A running server with both tenants; endpoints are stopped at the end."""
    gateways = {"FALAJ_GATEWAY": "127.0.0.1:0", "FALAJ_GATEWAY_GRPC": "127.0.0.1:0"}
    with Replica(folder / "home", {**gateways, **(settings or {})}) as server:
        prepared = Ground(folder, server)
        yield prepared
        with closing(prepared.mona):
            Laptop(folder, prepared.mona).close()


def timestamp(days: int = 0) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")
