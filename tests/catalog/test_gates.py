"""Rules as people write them, and the judgement over them: tables and properties."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.catalog.gate_rules import (
    DEFAULT_RULES,
    GATED_STAGES,
    RULE_METRIC,
    GateCase,
    GateRule,
    count_required_approvers,
    hash_rules,
    judge_rules,
    parse_rule,
    read_rules,
)
from falaj.catalog.lifecycle_records import VersionAttestation
from falaj.core.errors import Invalid
from falaj.core.ref import Ref

WRITTEN = [
    ("auc >= 0.8", GateRule(RULE_METRIC, "auc", ">=", 0.0, 0.8), "auc >= 0.8"),
    ("  auc>=0.8 ", GateRule(RULE_METRIC, "auc", ">=", 0.0, 0.8), "auc >= 0.8"),
    ("loss < -1e-3", GateRule(RULE_METRIC, "loss", "<", 0.0, -0.001), "loss < -0.001"),
    ("auc >= current", GateRule(RULE_METRIC, "auc", ">=", 1.0), "auc >= current"),
    ("latency_ms <= 1.1 * current", GateRule(RULE_METRIC, "latency_ms", "<=", 1.1), "latency_ms <= 1.1 * current"),
    ("auc >= current - 0.01", GateRule(RULE_METRIC, "auc", ">=", 1.0, -0.01), "auc >= current - 0.01"),
    ("a/b.c:d > 2*current+5", GateRule(RULE_METRIC, "a/b.c:d", ">", 2.0, 5.0), "a/b.c:d > 2 * current + 5"),
    ('"val loss" == 0', GateRule(RULE_METRIC, "val loss", "=="), '"val loss" == 0'),
    ("signature", GateRule("signature"), "signature"),
    ("safe  format", GateRule("safe format"), "safe format"),
    ("bias", GateRule("attestation", "bias"), "attestation bias"),
    ("attestation security-scan", GateRule("attestation", "security-scan"), "attestation security-scan"),
    ("zone ae-dubai", GateRule("zone", "ae-dubai"), "zone ae-dubai"),
    ("zone", GateRule("zone"), "zone"),
    ("1 approval", GateRule("approvals", count=1), "1 approval"),
    ("2 approvals", GateRule("approvals", count=2), "2 approvals"),
    ("1 dpo", GateRule("dpo", count=1), "1 dpo"),
]
WRONG = [
    "", "auc", "auc >=", ">= 0.8", "auc => 0.8", "auc >= 0.8 current", "auc >= current * 2", "auc >= nan", "auc >= inf",
    "auc >= 1e999", "auc >= 0x10", "auc >= 0 * current", "auc >= current + current", "auc = 1", "auc >= 0.8; drop",
    "10 approvals", "-1 approvals", "2 people", "attestation", "attestation Bias", "zone ../x", "signature please",
    "auc >= __import__('os')", 'a"b >= 1', "a b >= 1", "auc >= 1 # why", "x" * 500 + " >= 1", "auc >= \u0661",
]  # fmt: skip


@pytest.mark.parametrize(("text", "rule", "canonical"), WRITTEN)
def test_what_a_rule_says(text: str, rule: GateRule, canonical: str) -> None:
    assert parse_rule(text) == rule
    assert rule.text == canonical
    assert parse_rule(canonical) == rule


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(Invalid):
        parse_rule(text)


numbers = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=1e-200, max_value=1e200)
metric_rules = st.builds(
    GateRule,
    st.just(RULE_METRIC),
    st.from_regex(r"[^\"\n\s]([^\"\n\s]| (?=[^\"\n\s])){0,40}", fullmatch=True),
    st.sampled_from([">=", "<=", ">", "<", "=="]),
    st.one_of(st.just(0.0), positive),
    numbers.map(lambda x: x + 0.0),
)


@given(metric_rules)
def test_every_rule_is_read_as_it_is_written(rule: GateRule) -> None:
    assert parse_rule(rule.text) == rule


@given(st.text(max_size=120))
def test_any_text_is_a_rule_or_invalid(text: str) -> None:
    try:
        rule = parse_rule(text)
    except Invalid:
        return
    assert parse_rule(rule.text) == rule


@given(rule=metric_rules, value=numbers, current=numbers)
def test_nothing_passes_that_was_not_measured(rule: GateRule, value: float, current: float) -> None:
    none = judge_rules((rule,), GateCase("model", {}, "m@v1", {rule.name: current}))
    assert not none[0].passed
    assert not judge_rules((rule,), GateCase("model", {rule.name: math.nan}, "m@v1", {rule.name: current}))[0].passed
    if rule.factor:
        assert not judge_rules((rule,), GateCase("model", {rule.name: value}, "m@v1", {}))[0].passed
        assert judge_rules((rule,), GateCase("model", {rule.name: value}))[0].passed, (
            "the first of all has nobody to beat"
        )


JUDGED = [
    ("auc >= 0.8", {"auc": 0.8}, {}, True),
    ("auc >= 0.8", {"auc": 0.79}, {}, False),
    ("auc > 0.8", {"auc": 0.8}, {}, False),
    ("auc >= current", {"auc": 0.9}, {"auc": 0.9}, True),
    ("auc > current", {"auc": 0.9}, {"auc": 0.9}, False),
    ("ms <= 1.1 * current", {"ms": 11.0}, {"ms": 10.0}, True),
    ("ms <= 1.1 * current", {"ms": 11.1}, {"ms": 10.0}, False),
    ("auc >= current - 0.01", {"auc": 0.895}, {"auc": 0.9}, True),
    ("ms <= 9 * current", {"ms": 1.0}, {"ms": math.inf}, False),
    ("ms <= 9e+300 * current", {"ms": 1.0}, {"ms": 9e300}, False),
]


@pytest.mark.parametrize(("rule", "metrics", "current", "passed"), JUDGED)
def test_metrics(rule: str, metrics: dict[str, float], current: dict[str, float], passed: bool) -> None:
    [row] = judge_rules((parse_rule(rule),), GateCase("model", metrics, "model:a/b@v1", current))
    assert row.passed is passed
    assert row.rule == rule


def test_what_else_is_demanded() -> None:
    ref = Ref("attestation", "fraud", "a1")
    failed = VersionAttestation(ref, Ref("model", "fraud", "m", "v1"), "bias", False, "mona", 1.0)
    rules = read_rules("production", ("signature", "bias", "attestation scan", "zone a", "zone b", "zone c", "zone"))
    case = GateCase(
        "model", unsigned="not signed", unsafe="pickle", attested={"bias": failed}, refused={"a": "", "b": "law"}
    )
    told = {row.rule: (row.passed, row.found) for row in judge_rules(rules, case)}
    assert told["signature"] == (False, "not signed")
    assert told["safe format"] == (False, "pickle"), "nobody can leave this out"
    assert told["attestation bias"] == (False, "mona says it failed (a1)")
    assert told["attestation scan"] == (False, "nobody attested scan")
    assert [told[rule][0] for rule in ("zone a", "zone b", "zone c", "zone")] == [True, False, False, False]
    assert not judge_rules(
        read_rules("production", DEFAULT_RULES["production"]), GateCase("dataset", unsigned="x", unsafe="y")
    )


def test_gates_are_read_strictly() -> None:
    assert count_required_approvers(read_rules("production", ("2 approvals", "1 dpo"))) == (2, 1)
    assert count_required_approvers(read_rules("production", ("2 dpo",))) == (2, 2)
    assert count_required_approvers(read_rules("retired", ())) == (0, 0)
    assert all(read_rules(stage, DEFAULT_RULES[stage]) is not None for stage in GATED_STAGES)
    for stage, rules in (
        ("experiment", ()),
        ("production", ("1 approval", "2 approvals")),
        ("staging", ("zone",) * 101),
    ):
        with pytest.raises(Invalid):
            read_rules(stage, rules)
    one, other = read_rules("staging", ("bias", "signature")), read_rules("staging", ("signature", "attestation bias"))
    assert hash_rules(one) == hash_rules(other)
    assert hash_rules(one) != hash_rules(one[:1])
