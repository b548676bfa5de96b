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

from falaj.catalog.life_records import Attestation, Evidence
from falaj.core.data import dataclass
from falaj.core.errors import Invalid

GATED = ("staging", "production", "retired")
DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "staging": ("safe format",),
    "production": ("signature", "safe format", "1 approval"),
    "retired": (),
}
"""What stands where a project said nothing."""
SAFE, SIGNED, ATTESTED, PLACED, PEOPLE, OFFICERS, METRIC, ASSESSED = (
    "safe format", "signature", "attestation", "zone", "approvals", "dpo", "metric", "dpia",
)  # fmt: skip
MOST_RULES = 100
MOST_PEOPLE = 9
_LONGEST = 400
_HINT = "for example: auc >= current, latency_ms <= 1.1 * current, signature, attestation bias, 2 approvals"
_OPS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq,
}  # fmt: skip
_PLAIN = r"[A-Za-z_][A-Za-z0-9_./:-]{0,249}"
_NUMBER = r"[0-9]{1,25}(?:\.[0-9]{1,25})?(?:e[+-]?[0-9]{1,3})?"
# Texts, which Python compiles when one is first used and keeps: most commands judge nothing.
_AGAINST = (
    rf"""(?P<name>{_PLAIN}|"[^"\n]{{1,250}}") ?(?P<op>>=|<=|==|>|<) ?"""
    rf"""(?:(?P<number>-?{_NUMBER})|(?:(?P<factor>{_NUMBER}) ?\* ?)?current(?: ?(?P<room>[+-] ?{_NUMBER}))?)"""
)
_COUNT = r"(?P<count>[0-9]) (?:(?P<people>approvals?)|dpo)"
_WORD = r"(?P<what>attestation|zone) (?P<name>[a-z0-9][a-z0-9._-]{0,62})"


@dataclass(frozen=True, slots=True)
class Rule:
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
        if self.kind == METRIC:
            return f"{_quoted(self.name)} {self.op} {self._limit()}"
        if self.kind in (PEOPLE, OFFICERS):
            one = "approval" if self.kind == PEOPLE and self.count == 1 else self.kind
            return f"{self.count} {one}"
        return f"{self.kind} {self.name}".strip()

    def _limit(self) -> str:
        if not self.factor:
            return _shown(self.offset)
        times = "" if self.factor == 1 else f"{_shown(self.factor)} * "
        room = f" {'+' if self.offset > 0 else '-'} {_shown(abs(self.offset))}" if self.offset else ""
        return f"{times}current{room}"


@dataclass(frozen=True, slots=True)
class Case:
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
    attested: Mapping[str, Attestation] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    """By zone: why its label does not let it be served there; empty where it does."""
    assessed: str = ""
    """The impact assessment of its project that counts; empty when there is none."""


def parse_rule(text: str) -> Rule:
    """The rule that a text says, or Invalid."""
    words = " ".join(text.split())
    if len(words) > _LONGEST:
        raise Invalid(f"a rule of {len(words)} characters", f"at most {_LONGEST}; {_HINT}")
    if words in (SAFE, SIGNED, PLACED, ASSESSED):
        return Rule(words)
    if words == "bias":
        return Rule(ATTESTED, "bias")
    if found := re.fullmatch(_WORD, words):
        return Rule(found["what"], found["name"])
    if found := re.fullmatch(_COUNT, words):
        return Rule(PEOPLE if found["people"] else OFFICERS, count=int(found["count"]))
    if found := re.fullmatch(_AGAINST, words):
        return _metric_rule(found)
    raise Invalid(f"{words[:80]!r} is no rule", _HINT)


def read_rules(stage: str, texts: Sequence[str]) -> tuple[Rule, ...]:
    """The rules of a gate, each once; what nobody can take away is among them."""
    if stage not in GATED:
        raise Invalid(f"{stage[:40]!r} has no gate", f"one of: {', '.join(GATED)}")
    if len(texts) > MOST_RULES:
        raise Invalid(f"a gate of {len(texts)} rules", f"at most {MOST_RULES}")
    rules = tuple(dict.fromkeys(parse_rule(text) for text in texts))
    for kind in (PEOPLE, OFFICERS):
        if sum(rule.kind == kind for rule in rules) > 1:
            raise Invalid(f"it says twice how many {kind}", "say it once")
    if stage == "production" and Rule(SAFE) not in rules:
        rules = (*rules, Rule(SAFE))
    return rules


def voices(rules: Sequence[Rule]) -> tuple[int, int]:
    """How many people must approve, and how many of them must be data protection officers."""
    officers = max((rule.count for rule in rules if rule.kind == OFFICERS), default=0)
    people = max((rule.count for rule in rules if rule.kind == PEOPLE), default=0)
    return max(people, officers), officers


def digest_of_rules(rules: Sequence[Rule]) -> str:
    """What an approval is bound to: another gate is another question."""
    lines = "\n".join(sorted(rule.text for rule in rules))
    return "sha256:" + hashlib.sha256(lines.encode()).hexdigest()


def judge(rules: Sequence[Rule], case: Case) -> tuple[Evidence, ...]:
    """Every rule that is about the version itself, and what was found. People are asked afterwards."""
    found = []
    for rule in rules:
        if rule.kind in (PEOPLE, OFFICERS) or (rule.kind in (SAFE, SIGNED) and case.kind != "model"):
            continue
        passed, said = _JUDGES[rule.kind](rule, case)
        found.append(Evidence(rule.text, passed, said))
    return tuple(found)


def _metric_rule(found: re.Match[str]) -> Rule:
    name = found["name"].strip('"')
    if found["number"] is not None:
        return Rule(METRIC, name, found["op"], 0.0, _finite(found["number"]))
    factor = _finite(found["factor"] or "1")
    if not factor:
        raise Invalid("a factor of 0 compares with nothing", f"write the number itself: {name} {found['op']} 0")
    return Rule(METRIC, name, found["op"], factor, _finite((found["room"] or "0").replace(" ", "")))


def _finite(text: str) -> float:
    value = float(text) + 0.0  # no negative zero
    if not math.isfinite(value):
        raise Invalid(f"{text[:40]} is too large a number", _HINT)
    return value


def _measured(rule: Rule, case: Case) -> tuple[bool, str]:
    value = case.metrics.get(rule.name)
    if value is None or not math.isfinite(value):
        return False, f"no {rule.name} was measured"
    if not rule.factor:
        return _OPS[rule.op](value, rule.offset), f"{rule.name} is {_shown(value)}"
    if not case.holder:
        return True, f"{rule.name} is {_shown(value)}, and there is no version yet to compare with"
    current = case.current.get(rule.name)
    if current is None or not math.isfinite(current):
        return False, f"{rule.name} is {_shown(value)}, and nobody measured it of {case.holder}"
    limit = rule.factor * current + rule.offset
    said = f"{rule.name} is {_shown(value)}, and of {case.holder} {_shown(current)}"
    return math.isfinite(limit) and _OPS[rule.op](value, limit), said


def _attested(rule: Rule, case: Case) -> tuple[bool, str]:
    newest = case.attested.get(rule.name)
    if newest is None:
        return False, f"nobody attested {rule.name}"
    return newest.passed, f"{newest.author} says it {'passed' if newest.passed else 'failed'} ({newest.ref.name})"


def _placed(rule: Rule, case: Case) -> tuple[bool, str]:
    asked = {zone: why for zone, why in case.refused.items() if rule.name in ("", zone)}
    denied = [f"{zone}: {why}" for zone, why in sorted(asked.items()) if why]
    if denied or not asked:
        return False, "; ".join(denied) or "nobody asked whether it may be there"
    return True, f"it may be served in {', '.join(sorted(asked))}"


_JUDGES: Mapping[str, Callable[[Rule, Case], tuple[bool, str]]] = {
    METRIC: _measured,
    ATTESTED: _attested,
    PLACED: _placed,
    SAFE: lambda rule, case: (not case.unsafe, case.unsafe or "loading it runs no code"),
    ASSESSED: lambda rule, case: (bool(case.assessed), case.assessed or "no assessment is approved and in date"),
    SIGNED: lambda rule, case: (not case.unsigned, case.unsigned or "signed, and the signature is true"),
}


def _quoted(name: str) -> str:
    return name if re.fullmatch(_PLAIN, name) else f'"{name}"'


def _shown(value: float) -> str:
    return repr(value).removesuffix(".0")
