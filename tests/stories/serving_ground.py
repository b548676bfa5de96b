"""What stories of serving stand on: a real `falaj up` with its gateway, and callers that do not stop calling."""

import http.client
import json
import os
import random
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import falaj
from falaj.core.errors import FalajError
from tests.infer.models import _Kit
from tests.jobs.lab import until
from tests.people import enroll, enroll_tenant
from tests.replica import FALAJ
from tests.serve.laptop import Laptop

SCORE = "endpoint:fraud/score"
SMALL = {"cpus": 0.1, "memory": "256MiB"}


class Platform(Laptop):
    """`falaj up` in a process of its own, and a client of it. `url` is where the endpoint is called."""

    def __init__(self, home: Path, url: str, token: str, **how: Any) -> None:
        super().__init__(home, falaj.connect(url, token=token, **how))
        self.token = token

    def door(self, endpoint: str = SCORE) -> str:
        """Where the endpoint is called, once the gateway says so."""
        return f"{until(lambda: self.show(endpoint), lambda one: one.url).url}/infer"


class Up:
    """`falaj up` on a folder: it can be killed, and started again as the same one. `settings`: variables of its own."""

    def __init__(self, home: Path, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self._home, self._settings = home, settings
        self.process: subprocess.Popen[str]
        self.tokens: dict[str, str] = {}
        """Of the first administrator, of the administrator of the bank, and of those whom they took in."""
        self.there: Platform

    def start(self) -> Platform:
        """Let it begin; the first time its people come in."""
        known = {name: value for name, value in os.environ.items() if not name.startswith("FALAJ_")}
        ports = {**self._settings, "FALAJ_GATEWAY": "127.0.0.1:0", "FALAJ_GATEWAY_GRPC": "127.0.0.1:0"}
        words = [*FALAJ, "up", "--at", str(self._home / "house"), "--listen", "127.0.0.1:0", "--log", "ERROR"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=known | ports)
        assert self.process.stdout is not None
        url, tokens = self.process.stdout.readline().split()[-1], self._home / "tokens.json"
        if not tokens.exists():
            tokens.write_text(json.dumps(_founded(url, self.process.stdout)))
        self.tokens = json.loads(tokens.read_text())
        self.there = Platform(self._home, url, self.tokens["mona"])
        return self.there

    def kill(self) -> None:
        """As a machine that is gone."""
        self.there.here.close()
        with self.process:
            self.process.kill()

    def end(self) -> None:
        """As somebody who stops it."""
        with suppress(FalajError, AssertionError):
            self.there.close()  # replicas are jobs: they would go on without a platform
        self.there.here.close()
        with self.process:
            self.process.terminate()
            assert self.process.wait(60) == 0


@contextmanager
def up(home: Path, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[Up]:
    """A platform of its own; on the same folder, the same one again."""
    made = Up(home, settings)
    made.start()
    try:
        yield made
    finally:
        made.end()


@contextmanager
def platform(home: Path, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[Platform]:
    """The same, for those who leave it running."""
    with up(home, settings) as running:
        yield running.there


def _founded(url: str, said: Iterable[str]) -> dict[str, str]:
    """A tenant with somebody who deploys, and a cluster that takes their jobs; gives all tokens by name."""
    first = next(line.strip() for line in said if line.startswith("  "))
    with closing(falaj.connect(url, token=first)) as admin:
        boss_token = enroll_tenant(admin, "bank", "fatima")
        admin.clusters.change("local", {"tenants": "bank"})
    with closing(falaj.connect(url, token=boss_token)) as boss:
        token: str = enroll(boss, "mona", ("ml-engineer", "data-scientist"), jurisdiction="AE")
    return {"admin": first, "fatima": boss_token, "mona": token}


class Callers:
    """Threads that call an endpoint all the time, each with a connection and a key of its own for every request."""

    def __init__(self, url: str, token: str, threads: int = 6, pause_s: float = 0.0) -> None:
        self._url, self._token, self._pause_s = urlsplit(url), token, pause_s
        self.answers: Counter[tuple[str, int]] = Counter()
        """(revision, status) to how many."""
        self.seen: dict[str, set[str]] = {}
        """Key to the revisions that answered it."""
        self.requests: list[tuple[str, list[float]]] = []
        """Id and input of every request that was answered."""
        self.broken: list[str] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(number,)) for number in range(threads)]

    def __enter__(self) -> "Callers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def failed(self) -> int:
        """Answers that were none."""
        return len(self.broken) + sum(count for (_, status), count in self.answers.items() if status != 200)

    def _call(self, number: int) -> None:
        chance = random.Random(number)
        line = http.client.HTTPConnection(str(self._url.hostname), self._url.port, timeout=30)
        while not self._ended.wait(self._pause_s):
            key = f"customer-{chance.randrange(500)}"
            row: dict[str, Any] = {
                "name": "x",
                "datatype": "FP32",
                "shape": [1, 32],
                "data": [chance.random() for _ in range(32)],
            }
            headers = {"Authorization": f"Bearer {self._token}", "falaj-key": key}
            try:
                line.request("POST", self._url.path, json.dumps({"inputs": [row]}), headers)
                answer = line.getresponse()
                body = json.loads(answer.read())
            except (OSError, http.client.HTTPException) as error:
                self.broken.append(repr(error))
                line.close()
                continue
            revision = answer.headers.get("falaj-revision", "")
            self.answers[revision, answer.status] += 1
            if answer.status == 200:
                self.seen.setdefault(key, set()).add(revision)
                assert len(body["outputs"][0]["data"]) == 1
                self.requests.append((answer.headers["falaj-request"], row["data"]))
        line.close()


def slow(folder: Path) -> Path:
    """A model that takes about a second for a row: input `x` FP32 [-1, 32], output `y` FP32 [-1, 1]."""
    kit = _Kit(3)
    wide = kit.add("Unsqueeze", kit.add("MatMul", "x", kit.weight(32, 512)), kit.whole(2))
    flow = kit.add("Tanh", kit.add("Mul", wide, kit.weight(1, 1, 512)))
    weight = kit.weight(512, 512)
    for _ in range(100):
        flow = kit.add("Tanh", kit.add("MatMul", flow, weight))
    kit.add("Unsqueeze", kit.add("ReduceMean", flow, kit.whole(1, 2), keepdims=0), kit.whole(1), out="y")
    kit.save(folder, [("x", "FP32", ("batch", 32))], [("y", "FP32", ("batch", 1))])
    (folder / "falaj.json").write_text(json.dumps({"runtime": "onnx", "file": "model.onnx", "most_rows": 1}))
    return folder


def published(platform: Platform, folder: Path) -> Any:
    """The next version of the model."""
    return platform.here.catalog.publish("model:fraud/scorer", str(folder)).ref
