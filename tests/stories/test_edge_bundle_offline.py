"""A bundle serves where there is no platform and no Falaj: Python, the packages it names, and its own file."""

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.infer.models import mlp_of
from tests.stories.serving_ground import SCORE, SMALL, Callers, platform


def only(requirements: list[str], folder: Path) -> Path:
    """A folder with these packages and what they need, and nothing else that is installed here."""
    folder.mkdir()
    known: set[str] = set()
    left = [re.split(r"[=<>!~; \[(]", line)[0] for line in requirements]
    while left:
        name = left.pop()
        if name.lower() in known:
            continue
        known.add(name.lower())
        found = next(iter(metadata.distributions(name=name)), None)
        if found is None:
            continue  # what another platform needs
        wanted = [one for one in found.requires or () if "extra ==" not in one]
        left += [re.split(r"[=<>!~; \[(]", one)[0] for one in wanted]
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            link = folder / top
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(top))))
    return folder


@contextmanager
def edge(server: Path, bundle: Path, packages: Path, *flags: str) -> Iterator[dict[str, Any]]:
    """The server of a bundle, in a Python that knows these packages alone; ended by SIGTERM."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(packages), "PYTHONPATH": str(packages)}
    words = [sys.executable, "-S", str(server), "serve", str(bundle), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    with subprocess.Popen(
        [*words, *flags], stdout=subprocess.PIPE, env=environment, cwd=packages, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_edge_bundle_offline(tmp_path: Path) -> None:
    with platform(tmp_path) as there:
        there.here.serve.deploy(SCORE, there.model(seed=5), sample=1.0, **SMALL)
        there.until(lambda view: view.state == "ready")
        made = there.here.serve.bundle(SCORE, str(tmp_path / "edge.tar"), to="branch 12")
    # The platform is gone. All that is left are the two files and a key.
    with tarfile.open(made.path) as tar:
        needs = tar.extractfile("requirements.txt").read().decode().splitlines()  # type: ignore[union-attr]
        assert tar.extractfile("falaj-edge.pyz").read() == Path(made.server).read_bytes()  # type: ignore[union-attr]
    packages = only(needs, tmp_path / "packages")
    assert not (packages / "falaj").exists()
    flags = ("--trust", made.signed_by, "--folder", str(tmp_path / "edge"))
    with edge(Path(made.server), Path(made.path), packages, *flags) as said:
        answered = _asked(said, made.keys[0])
        with Callers(f"http://{said['http']}/v2/models/fraud.score/infer", made.keys[0], threads=2) as callers:
            _wait(callers, 300)
        assert callers.failed() == 0
        answered += sum(callers.answers.values())
    with platform(tmp_path) as there:
        first = there.here.serve.sync(str(tmp_path / "edge" / "logs"))
        again = there.here.serve.sync(str(tmp_path / "edge" / "logs"))
        assert first.requests == answered
        assert first.counts >= 1
        assert (again.requests, again.counts) == (0, 0)
        lines = there.here.serve.logs(SCORE, limit=10).lines
        assert {line.arm for line in lines} == {"edge"}


def _asked(said: dict[str, Any], key: str) -> int:
    """Any client of the protocol works, by HTTP and by gRPC; strangers do not."""
    x = np.linspace(0, 1, 64, dtype=np.float32).reshape(2, 32)
    for kit, address in ((tritonclient.http, said["http"]), (tritonclient.grpc, said["grpc"])):
        client = kit.InferenceServerClient(address)
        given = kit.InferInput("x", list(x.shape), "FP32")
        given.set_data_from_numpy(x)
        headers = {"authorization": f"Bearer {key}"}
        found = client.infer("fraud.score", [given], headers=headers, request_id=kit.__name__)
        np.testing.assert_allclose(found.as_numpy("y"), mlp_of(x, seed=5), rtol=1e-4, atol=1e-5)
        with pytest.raises(Exception, match="token"):
            client.infer("fraud.score", [given], headers={"authorization": "Bearer guess"})
        client.close()
    return 2


def _wait(callers: Callers, count: int) -> None:
    from tests.jobs.lab import until

    until(lambda: sum(callers.answers.values()), lambda found: found > count)
