"""What deploy/prometheus says, held to Prometheus itself: it reads the files, alerts fire, and it reads a platform."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.replica import Replica
from tests.servers.process import Missing
from tests.servers.prometheus import PrometheusServer, programs

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
CASES = """
rule_files: [alerts.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'up{job="falaj", instance="a"}', values: "1x5 0x20"}
      - {series: 'falaj_audit_oldest_unsealed_seconds{instance="a"}', values: "0x5 600x20"}
      - {series: 'falaj_requests_total{status="500"}', values: "0+30x30"}
      - {series: 'falaj_requests_total{status="200"}', values: "0+60x30"}
    alert_rule_test:
      - {eval_time: 4m, alertname: FalajDown, exp_alerts: []}
      - eval_time: 15m
        alertname: FalajDown
        exp_alerts:
          - exp_labels: {severity: page, job: falaj, instance: a}
            exp_annotations:
              summary: "falaj at a does not answer"
              action: "look at its log; jobs and replicas that run go on meanwhile"
      - eval_time: 15m
        alertname: FalajSealLate
        exp_alerts:
          - exp_labels: {severity: page}
            exp_annotations:
              summary: "events wait 10m 0s for a signed checkpoint"
              action: "is the key store reachable? the loop `seal` says why"
      - eval_time: 25m
        alertname: FalajCallsFail
        exp_alerts:
          - exp_labels: {severity: page}
            exp_annotations:
              summary: "33.33% of calls fail"
              action: "the log has a line for each, with its request id"
"""


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


def test_prometheus_reads_the_files_and_the_alerts_fire_when_they_should(folder: Path) -> None:
    assert "17 rules found" in _promtool("check", "rules", str(folder / "alerts.yml"))
    _promtool("check", "config", str(folder / "prometheus.yml"))
    (folder / "cases.yml").write_text(CASES)
    assert "SUCCESS" in _promtool("test", "rules", str(folder / "cases.yml"))


def test_prometheus_reads_a_platform(folder: Path, platform: Replica) -> None:
    (folder / "falaj.token").write_text(platform.token)
    config = (folder / "prometheus.yml").read_text()
    config = config.replace("127.0.0.1:8470", platform.url.removeprefix("http://")).replace("15s", "1s")
    (folder / "prometheus.yml").write_text(config)
    with PrometheusServer(folder / "prometheus.yml") as prometheus:
        until = time.monotonic() + 60
        while not prometheus.ask('up{job="falaj"} == 1 and on() count(falaj_loop_last_turn_timestamp_seconds) > 0'):
            assert time.monotonic() < until, prometheus.ask("up")
            time.sleep(0.2)
