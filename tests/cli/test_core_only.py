"""The core install: the platform stands with nothing beside what it names itself; what needs more says so."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

EXTRAS = (
    "deltalake duckdb grpc hpack lmdb obstore onnx onnxruntime optuna polars psycopg pyarrow pyiceberg redis scipy "
    "sklearn skl2onnx torch xgboost yaml"
)
_WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS.split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
from falaj.cli import main
sys.exit(main(sys.argv[1:]))
"""


def falaj(*words: str) -> list[str]:
    return [sys.executable, "-c", f"EXTRAS = {EXTRAS!r}\n{_WITHOUT}", *words]


@pytest.fixture
def link(tmp_path: Path) -> Iterator[str]:
    command = falaj("up", "--at", str(tmp_path / "home"), "--listen", "127.0.0.1:0", "--log", "ERROR")
    env = {**os.environ, "FALAJ_GATEWAY": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as running:
        assert running.stdout is not None
        found = next((line for line in running.stdout if line.startswith("Console: ")), "")
        yield found.removeprefix("Console: ").strip()
        running.kill()


def test_it_stands_and_shows_its_pages(link: str) -> None:
    origin = re.match(r"http://[^/]+", link)
    assert origin is not None
    with httpx.Client(base_url=origin[0], headers={"origin": origin[0]}, trust_env=False, timeout=60) as owner:
        owner.post("/console/sign-in", data={"code": link.partition("code=")[2]})
        for page in ("", "/catalog", "/jobs", "/track", "/serve", "/monitor", "/flows"):
            assert owner.get(f"/console{page}").status_code == 200, page
        assert "falaj[features]" in owner.get("/console/features").text


def test_a_desk_that_needs_more_says_what(tmp_path: Path) -> None:
    said = subprocess.run(falaj("features", "list", "--at", str(tmp_path)), check=False, capture_output=True, text=True)
    assert said.returncode != 0
    assert "pip install 'falaj[features]'" in said.stderr
    assert "Traceback" not in said.stderr
