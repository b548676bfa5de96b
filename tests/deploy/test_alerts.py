"""Every alert fires when it should and is silent when it should not be heard: asked of promtool, rule by rule."""

# ruff: noqa: E501 - one series a line reads best
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.servers.process import Missing
from tests.servers.prometheus import programs

FILE = Path(__file__).parents[2] / "deploy/prometheus/alerts.yml"
Series = dict[str, str]
ENDPOINT = {"tenant": "bank", "endpoint": "endpoint:fraud/score"}
WHERE = 'tenant="bank", endpoint="endpoint:fraud/score"'


class Case(NamedTuple):
    """Series that make an alert fire at a moment, others that do not, and what it says then."""

    fires: Series
    silent: Series
    at: str
    says: str
    labels: dict[str, str]
    every: str = "1m"


def _requests(good: str, bad: str) -> Series:
    return {
        'falaj_requests_total{action="jobs.add", status="200"}': good,
        'falaj_requests_total{action="jobs.add", status="503"}': bad,
    }


def _slo(slo: str, errors: str, events: str = "1x150") -> Series:
    return {f'falaj:slo_errors:rate5m{{slo="{slo}"}}': errors, f'falaj:slo_events:rate5m{{slo="{slo}"}}': events}


def _commits(quick: str) -> Series:
    bounds = {"1": quick, "2.5": "0+100x60", "+Inf": "0+100x60"}
    return {f'falaj_ledger_commit_seconds_bucket{{le="{bound}"}}': values for bound, values in bounds.items()}


CASES: dict[str, Case] = {
    "FalajBudgetBurnsFast": Case(
        _requests("0+60x90", "0+6x90"), _requests("0+600x90", "0+3x90"), "1h",
        "api-availability : errors of a month are used up 90.91 times too fast", {"slo": "api-availability"},
    ),
    "FalajBudgetBurnsSlowly": Case(
        # Hours instead of days: over a longer time promtool sometimes finds nothing.
        _slo("job-start", "0.1x50"), _slo("job-start", "0.1x4 0x46"), "3h",
        "job-start  will not last the month: 2 times too fast", {"slo": "job-start"}, "5m",
    ),
    "FalajDown": Case(
        {'up{job="falaj", instance="a"}': "1x5 0x20"}, {'up{job="falaj", instance="a"}': "1x10 0x3 1x20"}, "15m",
        "falaj at a does not answer", {"job": "falaj", "instance": "a"},
    ),
    "FalajLoopStuck": Case(
        {'falaj_loop_last_turn_timestamp_seconds{loop="seal", instance="a"}': "0x60",
         'falaj_loop_rest_seconds{loop="seal", instance="a"}': "1x60"},
        {'falaj_loop_last_turn_timestamp_seconds{loop="scrub", instance="a"}': "0x60",
         'falaj_loop_rest_seconds{loop="scrub", instance="a"}': "600x60"},
        "20m", "the loop seal at a has not come round for 20m 0s", {"loop": "seal", "instance": "a"},
    ),
    "FalajLoopFails": Case(
        {'falaj_loop_failures_total{loop="seal"}': "0+1x60"}, {'falaj_loop_failures_total{loop="seal"}': "0+0.5x60"},
        "40m", "steps of the loop seal fail again and again", {"loop": "seal"},
    ),
    "FalajSealLate": Case(
        {"falaj_audit_oldest_unsealed_seconds": "0x5 600x20"}, {"falaj_audit_oldest_unsealed_seconds": "0x8 600x3 1x20"},
        "15m", "events wait 10m 0s for a signed checkpoint", {},
    ),
    "FalajLedgerSlow": Case(
        _commits("0+90x60"), _commits("0+100x60"),
        "40m", "one commit in a hundred takes longer than a second", {},
    ),
    "FalajBackupLate": Case(
        {"falaj_backup_newest_timestamp_seconds": "600x200", "falaj_backup_every_seconds": "3600x200"},
        {"falaj_backup_newest_timestamp_seconds": "600x100 6000x100", "falaj_backup_every_seconds": "3600x200"},
        "3h", "the newest backup is 2h 50m 0s old", {},
    ),
    "FalajVersionsDiffer": Case(
        {'falaj_platform_replicas{version="1.0", instance="a"}': "1x200", 'falaj_platform_replicas{version="1.1", instance="a"}': "1x200"},
        {'falaj_platform_replicas{version="1.0", instance="a"}': "2x200", 'falaj_platform_replicas{version="1.0", instance="b"}': "2x200"},
        "3h", "2 versions of Falaj share a store for hours", {},
    ),
    "FalajNotCounted": Case(
        {'falaj_figures_failed_total{room="jobs"}': "0+1x60"}, {'falaj_figures_failed_total{room="jobs"}': "0x30 3x30"},
        "50m", "metrics of jobs are old: it could not be counted", {"room": "jobs"},
    ),
    "FalajRequestsHeld": Case(
        {'falaj_gateway_waiting{instance="a"}': "3x10"}, {'falaj_gateway_waiting{instance="a"}': "0x4 3x1 0x10"}, "5m",
        "requests wait for a first replica", {},
    ),
    "FalajReplicaBroken": Case(
        {'falaj_gateway_replicas{state="broken", instance="a"}': "2x10"},
        {'falaj_gateway_replicas{state="broken", instance="a"}': "0x10", 'falaj_gateway_replicas{state="away", instance="a"}': "2x10"},
        "8m", "a gateway leaves 2 replicas alone that fail", {"instance": "a"},
    ),
    "FalajIncidentOpen": Case(
        {'falaj_incidents{state="open", what="drift"}': "1x5"}, {'falaj_incidents{state="acknowledged", what="drift"}': "1x5"},
        "3m", "1 incidents of drift are open, and nobody has acknowledged them", {"what": "drift"},
    ),
    "FalajJobsWait": Case(
        {'falaj_jobs_oldest_wait_seconds{queue="gpu"}': "25200x5"}, {'falaj_jobs_oldest_wait_seconds{queue="gpu"}': "21000x5"},
        "3m", "a job in gpu waits for 7h 0m 0s", {"queue": "gpu"},
    ),
    "FalajAttemptsFail": Case(
        {'falaj_attempts_total{outcome="failed"}': "0+3x90", 'falaj_attempts_total{outcome="succeeded"}': "0+1x90"},
        {'falaj_attempts_total{outcome="failed"}': "0+1x90", 'falaj_attempts_total{outcome="succeeded"}': "0+3x90"},
        "70m", "75% of attempts of the last hour failed or were lost", {},
    ),
    "FalajNodeAway": Case(
        {'falaj_cluster_nodes{cluster="hall", state="away"}': "2x30"}, {'falaj_cluster_nodes{cluster="hall", state="drained"}': "2x30"},
        "20m", "2 nodes of hall are away", {"cluster": "hall"},
    ),
    "FalajClusterAlert": Case(
        {'falaj_cluster_alerts{kind="heat"}': "1x30"}, {'falaj_cluster_alerts{kind="heat"}': "0x10 1x4 0x20"}, "14m",
        "1 alerts of kind heat last", {"kind": "heat"},
    ),
    "FalajDeliveriesDead": Case(
        {'falaj_hook_deliveries{state="dead"}': "4x5"}, {'falaj_hook_deliveries{state="waiting"}': "4x5"}, "3m",
        "4 events could not be delivered to hooks for a day", {},
    ),
}  # fmt: skip


class Promise(NamedTuple):
    """Series of which a part breaks an objective, whose it is, and how fast its budget goes then."""

    series: Series
    labels: dict[str, str]
    burn: float
    at: str = "20m"
    every: str = "1m"


OBJECTIVES: dict[str, Promise] = {
    # A tenth of everything goes wrong; health checks and scrapes are not calls.
    "api-availability": Promise(
        {**_requests("0+90x20", "0+10x20"), 'falaj_requests_total{action="edge.ready", status="503"}': "0+900x20"}, {}, 100,
    ),
    "api-latency": Promise(
        {'falaj_request_seconds_count{action="jobs.add"}': "0+100x20",
         'falaj_request_seconds_bucket{action="jobs.add", le="1"}': "0+90x20"}, {}, 10,
    ),
    "seal-delay": Promise({"falaj_audit_oldest_unsealed_seconds": "90x20"}, {}, 100),
    "job-start": Promise(
        {"falaj_attempts_waited_seconds_count": "0+100x20", 'falaj_attempts_waited_seconds_bucket{le="900"}': "0+90x20"}, {}, 2,
    ),
    "endpoint-availability": Promise(
        {f'falaj_gateway_requests_total{{{WHERE}, class="2xx"}}': "0+90x20", f'falaj_gateway_requests_total{{{WHERE}, class="5xx"}}': "0+10x20",
         f"falaj_gateway_errors_total{{{WHERE}}}": "0+10x20"}, ENDPOINT, 10,
    ),
    "endpoint-latency": Promise(
        {f"falaj_gateway_request_seconds_count{{{WHERE}}}": "0+100x20",
         f'falaj_gateway_request_seconds_bucket{{{WHERE}, le="0.262144"}}': "0+90x20"}, ENDPOINT, 10,
    ),
    "backup-age": Promise(
        {"falaj_backup_newest_timestamp_seconds": "60x20", "falaj_backup_every_seconds": "300x20"}, {}, 100,
    ),
    "freshness": Promise(
        {'falaj_feature_newest_timestamp_seconds{tenant="bank", stream="fraud/spend", instance="a"}': "1x330",
         'falaj_feature_newest_timestamp_seconds{tenant="bank", stream="fraud/new", instance="a"}': "0x330"},
        {"tenant": "bank", "stream": "fraud/spend"}, 100, "27h", "5m",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def promtool() -> str:
    try:
        return programs()[1]
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


def rules() -> dict[str, dict[str, Any]]:
    """The alerts, by name."""
    groups = yaml.safe_load(FILE.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def _held(promtool: str, folder: Path, every: str, tests: list[dict[str, Any]], alert: str = "FalajBudget") -> None:
    """Rules that an alert does not stand on are left out: each is worked out at every step of every case."""
    groups = yaml.safe_load(FILE.read_text())["groups"]
    for group in groups if "Budget" not in alert else ():
        group["rules"] = [rule for rule in group["rules"] if rule.get("alert") == alert]
    (folder / "alerts.yml").write_text(yaml.safe_dump({"groups": groups}))
    cases = {"rule_files": ["alerts.yml"], "evaluation_interval": every, "tests": tests}
    (folder / "cases.yml").write_text(yaml.safe_dump(cases))
    command = [promtool, "test", "rules", str(folder / "cases.yml")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _input(series: Series) -> list[dict[str, str]]:
    return [{"series": name, "values": values} for name, values in series.items()]


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == set(rules())


@pytest.mark.parametrize("name", CASES)
def test_it_fires_and_is_silent(promtool: str, tmp_path: Path, name: str) -> None:
    case, rule = CASES[name], rules()[name]
    told = {
        "exp_labels": {**rule["labels"], **case.labels},
        "exp_annotations": {**rule["annotations"], "summary": case.says},
    }
    tests = [
        {
            "interval": case.every, "input_series": _input(series),
            "alert_rule_test": [{"eval_time": case.at, "alertname": name, "exp_alerts": heard}],
        }
        for series, heard in ((case.fires, [told]), (case.silent, []))
    ]  # fmt: skip
    _held(promtool, tmp_path, case.every, tests, name)


@pytest.mark.parametrize("slo", OBJECTIVES)
def test_an_objective_counts_what_it_promises(promtool: str, tmp_path: Path, slo: str) -> None:
    case = OBJECTIVES[slo]
    named = ", ".join(f'{key}="{value}"' for key, value in sorted({**case.labels, "slo": slo}.items()))
    asked = f'round(falaj:slo_burn:rate5m{{slo="{slo}"}}, 0.001)'
    heard = [{"labels": f"{{{named}}}", "value": case.burn}]
    test = {
        "interval": case.every, "input_series": _input(case.series),
        "promql_expr_test": [{"expr": asked, "eval_time": case.at, "exp_samples": heard}],
    }  # fmt: skip
    _held(promtool, tmp_path, case.every, [test])


def test_every_objective_has_a_budget_and_a_case() -> None:
    groups = {group["name"]: group["rules"] for group in yaml.safe_load(FILE.read_text())["groups"]}
    kept: dict[str, set[str]] = {}
    for rule in groups["falaj-objectives"]:
        kept.setdefault(rule["labels"]["slo"], set()).add(rule["record"])
    assert set(kept) == set(OBJECTIVES)
    assert all(len(records) == 3 for records in kept.values())


def test_few_calls_say_nothing(promtool: str, tmp_path: Path) -> None:
    lone = _requests("0x60", "0x30 1x30")
    test = {
        "interval": "1m", "input_series": _input(lone),
        "alert_rule_test": [{"eval_time": f"{at}m", "alertname": "FalajBudgetBurnsFast", "exp_alerts": []} for at in (33, 45, 59)],
    }  # fmt: skip
    _held(promtool, tmp_path, "1m", [test])
