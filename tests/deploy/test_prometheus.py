"""What deploy/prometheus says, held to Prometheus itself: it reads the files, alerts fire, and it reads a platform."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.test_dashboards import NAME, queries, rules
from tests.replica import Replica
from tests.servers.process import Missing, wait_until
from tests.servers.prometheus import PrometheusServer, programs

NAMES = {name for expr in queries().values() for name in NAME.findall(expr)}
FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files as an operator would lay them out."""
    try:
        programs()
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    for file in FOLDER.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "falaj.token").write_text("none yet")
    return tmp_path


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Replica]:
    with Replica(tmp_path / "house", {"FALAJ_GATEWAY": ""}) as running:
        yield running


def _promtool(*words: str) -> str:
    _, tool = programs()
    done = subprocess.run([tool, *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_reads_the_files(folder: Path) -> None:
    assert f"{len(rules())} rules found" in _promtool("check", "rules", str(folder / "alerts.yml"))
    _promtool("check", "config", str(folder / "prometheus.yml"))


def test_prometheus_reads_a_platform(folder: Path, platform: Replica) -> None:
    (folder / "falaj.token").write_text(platform.token)
    config = (folder / "prometheus.yml").read_text()
    config = config.replace("127.0.0.1:8470", platform.url.removeprefix("http://")).replace(
        "15s", "1s\n  evaluation_interval: 1s"
    )
    (folder / "prometheus.yml").write_text(config)
    with PrometheusServer(folder / "prometheus.yml") as prometheus:
        until = time.monotonic() + 60
        while not prometheus.ask('up{job="falaj"} == 1 and on() count(falaj_loop_last_turn_timestamp_seconds) > 0'):
            assert time.monotonic() < until, prometheus.ask("up")
            time.sleep(0.2)
        wait_until(lambda: bool(prometheus.ask("falaj:slo_burn:rate30d")), 60)
        # The first request that a platform counts is the one that reads it: the next tells of it.
        wait_until(lambda: bool(prometheus.ask("falaj_requests_total")), 60)
        known = {name for name in NAMES if prometheus.ask(name)}
        assert {
            "up",
            "falaj_ledger_events_total",
            "falaj_requests_total",
            "falaj:slo_budget:ratio",
            "falaj_platform_replicas",
        } <= known
        empty = []
        for where, expr in queries().items():
            answer = prometheus.ask(expr.replace("$__rate_interval", "1m").replace("$endpoint", ".*"))
            plain = not re.search(r"[{>]", expr) and set(NAME.findall(expr)) <= known
            empty += [where] if plain and not answer else []
        assert empty == []
