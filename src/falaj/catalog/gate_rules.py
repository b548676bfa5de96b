"""Gates: what a project demands before a version enters a stage. Pure: the rules as people write them, the judgement.

    auc >= 0.8                       a metric against a number
    auc >= current                   against the version that holds the stage, or held it last
    latency_ms <= 1.1 * current + 2  against it, with room
    signature                        signed, and the signature is true
    safe format                      loading it runs no code; of a model in production this is always demanded
    attestation bias                 the newest attestation of that kind passed; `bias` alone says the same
    dpia                             the project has an impact assessment that is approved and not due for review
    zone ae-dubai                    its label lets it be served there; `zone` alone: wherever it lies
    2 approvals                      so many people, besides who asks and who wrote it
    1 dpo                            so many of them data protection officers

What is not known fails: a metric nobody measured, a format nobody named, a comparison with a number that is none.
"""

import hashlib
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from falaj.catalog.lifecycle_records import RuleResult, VersionAttestation
from falaj.core.data import dataclass
from falaj.core.errors import Invalid

GATED_STAGES = ("staging", "production", "retired")
DEFAULT_RULES: Mapping[str, tuple[str, ...]] = {
    "staging": ("safe format",),
    "production": ("signature", "safe format", "1 approval"),
    "retired": (),
}
"""What stands where a project said nothing."""
(
    RULE_SAFE_FORMAT,
    RULE_SIGNATURE,
    RULE_ATTESTATION,
    RULE_ZONE,
    RULE_APPROVALS,
    RULE_OFFICERS,
    RULE_METRIC,
    RULE_ASSESSMENT,
) = (
    "safe format",
    "signature",
    "attestation",
    "zone",
    "approvals",
    "dpo",
    "metric",
    "dpia",
)
MAX_RULES = 100
MAX_APPROVERS = 9
_MAX_RULE_CHARS = 400
_RULE_HINT = "for example: auc >= current, latency_ms <= 1.1 * current, signature, attestation bias, 2 approvals"
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}
_METRIC_NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_./:-]{0,249}"
_NUMBER_PATTERN = r"[0-9]{1,25}(?:\.[0-9]{1,25})?(?:e[+-]?[0-9]{1,3})?"
# Texts, which Python compiles when one is first used and keeps: most commands judge nothing.
_METRIC_RULE_PATTERN = (
    rf"""(?P<name>{_METRIC_NAME_PATTERN}|"[^"\n]{{1,250}}") ?(?P<op>>=|<=|==|>|<) ?"""
    rf"""(?:(?P<number>-?{_NUMBER_PATTERN})|(?:(?P<factor>{_NUMBER_PATTERN}) ?\* ?)?current"""
    rf"""(?: ?(?P<room>[+-] ?{_NUMBER_PATTERN}))?)"""
)
_COUNT_RULE_PATTERN = r"(?P<count>[0-9]) (?:(?P<people>approvals?)|dpo)"
_NAMED_RULE_PATTERN = r"(?P<what>attestation|zone) (?P<name>[a-z0-9][a-z0-9._-]{0,62})"


@dataclass(frozen=True, slots=True)
class GateRule:
    """One demand. Of a metric: it must stand in `op` to `factor` times the current one plus `offset`."""

    kind: str
    name: str = ""
    op: str = ""
    factor: float = 0.0
    offset: float = 0.0
    count: int = 0

    @property
    def text(self) -> str:
        """The rule as it is written; the same rule always in the same words."""
        if self.kind == RULE_METRIC:
            return f"{_quote_metric_name(self.name)} {self.op} {self.format_limit()}"
        if self.kind in (RULE_APPROVALS, RULE_OFFICERS):
            count_word = "approval" if self.kind == RULE_APPROVALS and self.count == 1 else self.kind
            return f"{self.count} {count_word}"
        return f"{self.kind} {self.name}".strip()

    def format_limit(self) -> str:
        if not self.factor:
            return _format_number(self.offset)
        factor_text = "" if self.factor == 1 else f"{_format_number(self.factor)} * "
        offset_text = f" {'+' if self.offset > 0 else '-'} {_format_number(abs(self.offset))}" if self.offset else ""
        return f"{factor_text}current{offset_text}"


@dataclass(frozen=True, slots=True)
class GateCase:
    """What is known of a version when a gate judges it."""

    kind: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    holder: str = ""
    """The version that holds the stage, or held it last, and what is measured of it."""
    current: Mapping[str, float] = field(default_factory=dict)
    unsigned: str = ""
    """Why its signature does not count; empty when it does."""
    unsafe: str = ""
    """Why it is not in a safe format; empty when it is."""
    attested: Mapping[str, VersionAttestation] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    """By zone: why its label does not let it be served there; empty where it does."""
    assessed: str = ""
    """The impact assessment of its project that counts; empty when there is none."""


def parse_rule(text: str) -> GateRule:
    """The rule that a text says, or Invalid."""
    rule_words = " ".join(text.split())
    if len(rule_words) > _MAX_RULE_CHARS:
        raise Invalid(f"a rule of {len(rule_words)} characters", f"at most {_MAX_RULE_CHARS}; {_RULE_HINT}")
    if rule_words in (RULE_SAFE_FORMAT, RULE_SIGNATURE, RULE_ZONE, RULE_ASSESSMENT):
        return GateRule(rule_words)
    if rule_words == "bias":
        return GateRule(RULE_ATTESTATION, "bias")
    if rule_match := re.fullmatch(_NAMED_RULE_PATTERN, rule_words):
        return GateRule(rule_match["what"], rule_match["name"])
    if rule_match := re.fullmatch(_COUNT_RULE_PATTERN, rule_words):
        return GateRule(RULE_APPROVALS if rule_match["people"] else RULE_OFFICERS, count=int(rule_match["count"]))
    if rule_match := re.fullmatch(_METRIC_RULE_PATTERN, rule_words):
        return _build_metric_rule(rule_match)
    raise Invalid(f"{rule_words[:80]!r} is no rule", _RULE_HINT)


def read_rules(stage: str, texts: Sequence[str]) -> tuple[GateRule, ...]:
    """The rules of a gate, each once; what nobody can take away is among them."""
    if stage not in GATED_STAGES:
        raise Invalid(f"{stage[:40]!r} has no gate", f"one of: {', '.join(GATED_STAGES)}")
    if len(texts) > MAX_RULES:
        raise Invalid(f"a gate of {len(texts)} rules", f"at most {MAX_RULES}")
    rules = tuple(dict.fromkeys(parse_rule(text) for text in texts))
    for kind in (RULE_APPROVALS, RULE_OFFICERS):
        if sum(rule.kind == kind for rule in rules) > 1:
            raise Invalid(f"it says twice how many {kind}", "say it once")
    if stage == "production" and GateRule(RULE_SAFE_FORMAT) not in rules:
        rules = (*rules, GateRule(RULE_SAFE_FORMAT))
    return rules


def count_required_approvers(rules: Sequence[GateRule]) -> tuple[int, int]:
    """How many people must approve, and how many of them must be data protection officers."""
    officer_count = max((rule.count for rule in rules if rule.kind == RULE_OFFICERS), default=0)
    approver_count = max((rule.count for rule in rules if rule.kind == RULE_APPROVALS), default=0)
    return max(approver_count, officer_count), officer_count


def hash_rules(rules: Sequence[GateRule]) -> str:
    """What an approval is bound to: another gate is another question."""
    lines = "\n".join(sorted(rule.text for rule in rules))
    return "sha256:" + hashlib.sha256(lines.encode()).hexdigest()


def judge_rules(rules: Sequence[GateRule], case: GateCase) -> tuple[RuleResult, ...]:
    """Every rule that is about the version itself, and what was found. People are asked afterwards."""
    results = []
    for rule in rules:
        if rule.kind in (RULE_APPROVALS, RULE_OFFICERS) or (
            rule.kind in (RULE_SAFE_FORMAT, RULE_SIGNATURE) and case.kind != "model"
        ):
            continue
        passed, observation = _JUDGES_BY_KIND[rule.kind](rule, case)
        results.append(RuleResult(rule.text, passed, observation))
    return tuple(results)


def _build_metric_rule(rule_match: re.Match[str]) -> GateRule:
    name = rule_match["name"].strip('"')
    if rule_match["number"] is not None:
        return GateRule(RULE_METRIC, name, rule_match["op"], 0.0, _parse_finite_number(rule_match["number"]))
    factor = _parse_finite_number(rule_match["factor"] or "1")
    if not factor:
        raise Invalid("a factor of 0 compares with nothing", f"write the number itself: {name} {rule_match['op']} 0")
    return GateRule(
        RULE_METRIC, name, rule_match["op"], factor, _parse_finite_number((rule_match["room"] or "0").replace(" ", ""))
    )


def _parse_finite_number(text: str) -> float:
    value = float(text) + 0.0  # no negative zero
    if not math.isfinite(value):
        raise Invalid(f"{text[:40]} is too large a number", _RULE_HINT)
    return value


def _judge_metric(rule: GateRule, case: GateCase) -> tuple[bool, str]:
    value = case.metrics.get(rule.name)
    if value is None or not math.isfinite(value):
        return False, f"no {rule.name} was measured"
    if not rule.factor:
        return _COMPARISONS[rule.op](value, rule.offset), f"{rule.name} is {_format_number(value)}"
    if not case.holder:
        return True, f"{rule.name} is {_format_number(value)}, and there is no version yet to compare with"
    holder_value = case.current.get(rule.name)
    if holder_value is None or not math.isfinite(holder_value):
        return False, f"{rule.name} is {_format_number(value)}, and nobody measured it of {case.holder}"
    limit = rule.factor * holder_value + rule.offset
    observation = f"{rule.name} is {_format_number(value)}, and of {case.holder} {_format_number(holder_value)}"
    return math.isfinite(limit) and _COMPARISONS[rule.op](value, limit), observation


def _judge_attestation(rule: GateRule, case: GateCase) -> tuple[bool, str]:
    newest = case.attested.get(rule.name)
    if newest is None:
        return False, f"nobody attested {rule.name}"
    return newest.passed, f"{newest.author} says it {'passed' if newest.passed else 'failed'} ({newest.ref.name})"


def _judge_zone(rule: GateRule, case: GateCase) -> tuple[bool, str]:
    denials_of_rule = {zone: denial for zone, denial in case.refused.items() if rule.name in ("", zone)}
    denial_texts = [f"{zone}: {denial}" for zone, denial in sorted(denials_of_rule.items()) if denial]
    if denial_texts or not denials_of_rule:
        return False, "; ".join(denial_texts) or "nobody asked whether it may be there"
    return True, f"it may be served in {', '.join(sorted(denials_of_rule))}"


_JUDGES_BY_KIND: Mapping[str, Callable[[GateRule, GateCase], tuple[bool, str]]] = {
    RULE_METRIC: _judge_metric,
    RULE_ATTESTATION: _judge_attestation,
    RULE_ZONE: _judge_zone,
    RULE_SAFE_FORMAT: lambda rule, case: (not case.unsafe, case.unsafe or "loading it runs no code"),
    RULE_ASSESSMENT: lambda rule, case: (bool(case.assessed), case.assessed or "no assessment is approved and in date"),
    RULE_SIGNATURE: lambda rule, case: (not case.unsigned, case.unsigned or "signed, and the signature is true"),
}


def _quote_metric_name(name: str) -> str:
    return name if re.fullmatch(_METRIC_NAME_PATTERN, name) else f'"{name}"'


def _format_number(value: float) -> str:
    return repr(value).removesuffix(".0")
