"""Dashboards, scrapes and alerts ask only for what a platform, a gateway and a replica really tell."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parsed

from falaj.infer.model_statistics import ModelStatistics, render_exposition
from tests.api.small import serving
from tests.gateway.stand_in import Ground, Replica
from tests.gateway.test_doors import INFER
from tests.people import enroll

DEPLOY = Path(__file__).parents[2] / "deploy"
NAME = re.compile(r"\b(?:falaj|process)_[a-z0-9_]+\b|\bfalaj:[a-z0-9_:]+|\bup\b")
UNITS = ("seconds", "bytes", "total", "ratio", "cores", "rows", "score")
COUNTED = {  # what is simply a number of things
    "falaj_jobs", "falaj_endpoints", "falaj_replicas", "falaj_watches", "falaj_incidents", "falaj_flow_runs",
    "falaj_hook_deliveries", "falaj_sweeps", "falaj_cluster_nodes", "falaj_cluster_gpus", "falaj_cluster_used_gpus",
    "falaj_cluster_alerts", "falaj_audit_logs", "falaj_audit_sealed_events", "falaj_audit_unsealed_logs",
    "falaj_blobs_objects", "falaj_catalog_versions", "falaj_feature_streams", "falaj_endpoint_ready_replicas",
    "falaj_figures_cut", "falaj_lane_waiting", "falaj_open_event_streams", "falaj_loop_leads", "falaj_infer_waiting",
    "falaj_gateway_in_flight", "falaj_gateway_held", "falaj_gateway_endpoints", "falaj_gateway_replicas",
    "falaj_gateway_waiting", "falaj_gateway_connections", "falaj_platform_replicas",
}  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, set[str]]]:
    """Every name as it is told, with its kind and its labels."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FALAJ_BACKUP_TO", f"dir:{tmp_path_factory.mktemp('backups')}")
        ground = Ground(tmp_path_factory.mktemp("told"), sample=0.0)
    ground.add(Replica(ground.loop))
    ground.open()
    house = ground.town.house
    token = enroll(ground.town.as_("admin"), "prometheus", ("auditor",), service=True, projects=("metrics",))
    bearer = {"authorization": f"Bearer {token}"}
    client = httpx.Client(trust_env=False, timeout=60)
    with serving(house, listen="127.0.0.1:0") as server, house.working(), client as http:
        http.post(f"{ground.doors.http}{INFER}", content=b"{}", headers=ground.headers())
        pages = [http.get(f"{url}/metrics", headers=bearer) for url in (server.url, server.url, ground.doors.http)]
    ground.close()
    assert [page.status_code for page in pages] == [200, 200, 200]
    texts = [page.text for page in pages[1:]] + [render_exposition([("m", "1", ModelStatistics(), 0)]).decode()]
    found: dict[str, tuple[str, set[str]]] = {"up": ("gauge", {"job", "instance"})}
    for text in texts:
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                tails = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
                found |= {name + tail: (kind, set()) for tail in tails if name + tail not in found}
                assert f"# HELP {name} " in text
        for family in parsed(text):
            for sample in family.samples:
                found[sample.name][1].update(sample.labels)
    return found


def test_names_say_what_they_measure(told: dict[str, tuple[str, set[str]]]) -> None:
    for name, (kind, _) in told.items():
        base = re.sub("_(bucket|sum|count)$", "", name) if kind == "histogram" else name
        assert base in COUNTED or base == "up" or base.endswith(UNITS), name
        assert (kind == "counter") == name.endswith("_total"), name


def queries() -> dict[str, str]:
    """Every question that is asked, by where it stands."""
    found: dict[str, str] = {}
    make = _made()
    for board in make["BOARDS"]:
        for panel in make["dashboard"](board)["panels"]:
            for target in panel["targets"]:
                found[f"{board}: {panel['title']} {target['refId']}"] = target["expr"]
    for rule in rules():
        if "record" in rule:
            found[f"{rule['record']} {rule.get('labels')}"] = rule["expr"]
            continue
        found[f"alert: {rule['alert']}"] = rule["expr"]
        assert set(rule["annotations"]) == {"summary", "action", "runbook_url"}
        assert rule["labels"]["severity"] in ("page", "ticket")
    return found


def rules() -> list[dict[str, Any]]:
    """Every rule that Prometheus is given."""
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _made() -> dict[str, Any]:
    space: dict[str, Any] = {"__file__": str(DEPLOY / "grafana/make.py"), "__name__": "make"}
    exec((DEPLOY / "grafana/make.py").read_text(), space)  # noqa: S102 - a file of ours
    return space


def test_every_question_is_about_something_that_is_told(told: dict[str, tuple[str, set[str]]]) -> None:
    asked = queries()
    assert len(asked) > 60
    made = {"slo", "tenant", "endpoint", "stream"}
    known_here = told | {rule["record"]: ("gauge", made) for rule in rules() if "record" in rule}
    for where, expr in asked.items():
        names = NAME.findall(expr)
        assert names or expr.startswith("vector("), where
        assert expr.count("(") == expr.count(")"), where
        for name in names:
            assert name in known_here, (where, name)
        known: set[str] = {"le", "job", "instance"}.union(*(known_here[name][1] for name in names))
        full = all(known_here[name][1] for name in names)
        labels = {label for group in re.findall(r"by \(([^)]*)\)", expr) for label in re.split(r",\s*", group)}
        labels |= {match for group in re.findall(r"\{([^}]*)\}", expr) for match in re.findall(r"(\w+)=", group)}
        assert not full or labels <= known, (where, labels - known)
        for name in re.findall(r"(?:rate|increase)\(([a-z_]+)", expr):
            assert told[name][0] in ("counter", "histogram"), (where, name)


def test_the_files_are_as_they_are_made() -> None:
    make = _made()
    for board in make["BOARDS"]:
        assert (DEPLOY / f"grafana/{board}.json").read_text() == make["text"](board), (
            "run: python deploy/grafana/make.py"
        )
        panels = make["dashboard"](board)["panels"]
        assert len({panel["title"] for panel in panels}) == len(panels)
        assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_the_scrape_asks_whom_the_alerts_name() -> None:
    scrape = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    assert [one["job_name"] for one in scrape["scrape_configs"]] == ["falaj", "falaj-gateway"]
    assert all("credentials_file" in one["authorization"] for one in scrape["scrape_configs"])
    assert scrape["rule_files"] == ["alerts.yml"]
