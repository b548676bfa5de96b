"""Risks of an impact assessment: likelihood and severity before and after the measures. Pure."""

import re
from collections.abc import Iterable
from typing import ClassVar

from falaj.core.data import dataclass
from falaj.core.errors import Invalid

RISK_LEVELS = ("low", "medium", "high", "very-high")
_MEDIUM_FROM, _HIGH_FROM, _VERY_HIGH_FROM = 4, 8, 15  # products of two ratings of 1 to 5; a house rule, of no law
_RISK_PATTERN = re.compile(r"\s*([1-5])\s*x\s*([1-5])\s*>\s*([1-5])\s*x\s*([1-5])\s*\|([^|]+)\|([^|]+)")
_RISK_EXAMPLE = "4x5>2x3 | a rare illness names a person | postcodes are cut to the emirate"


@dataclass(frozen=True, slots=True)
class PrivacyRisk:
    """One risk to people: how likely and how severe, what is done about it, and what is left."""

    COLUMNS: ClassVar = ("text", "likelihood", "severity", "measure", "residual_likelihood", "residual_severity")

    text: str
    likelihood: int
    """1 (rare) to 5 (almost certain)."""
    severity: int
    """1 (negligible) to 5 (cannot be undone)."""
    measure: str
    residual_likelihood: int
    residual_severity: int

    @property
    def level(self) -> str:
        """How high the risk is before the measure."""
        return rate_risk(self.likelihood, self.severity)

    @property
    def residual_level(self) -> str:
        """How high the risk is after the measure."""
        return rate_risk(self.residual_likelihood, self.residual_severity)


def rate_risk(likelihood: int, severity: int) -> str:
    """Return the level of a risk from two ratings of 1 to 5."""
    product = likelihood * severity
    if product >= _VERY_HIGH_FROM:
        return "very-high"
    return "high" if product >= _HIGH_FROM else "medium" if product >= _MEDIUM_FROM else "low"


def parse_risks(lines: Iterable[str]) -> tuple[PrivacyRisk, ...]:
    """Read risks as people type them: `4x5>2x3 | risk | measure` (likelihood x severity, before > after)."""
    return tuple(_parse_risk(line) for line in lines)


def _parse_risk(line: str) -> PrivacyRisk:
    risk_match = _RISK_PATTERN.fullmatch(line)
    if risk_match is None:
        raise Invalid(
            f"risk {line[:80]!r}: expected LIKELIHOODxSEVERITY>LIKELIHOODxSEVERITY | risk | measure", _RISK_EXAMPLE
        )
    likelihood, severity, residual_likelihood, residual_severity = (int(risk_match[number]) for number in range(1, 5))
    risk = PrivacyRisk(
        risk_match[5].strip(), likelihood, severity, risk_match[6].strip(), residual_likelihood, residual_severity
    )
    if not risk.text or not risk.measure:
        raise Invalid(f"risk {line[:80]!r}: the risk or its measure is empty", _RISK_EXAMPLE)
    if residual_likelihood * residual_severity > likelihood * severity:
        raise Invalid(f"risk {line[:80]!r}: the risk that is left is higher than the risk", "measures lower a risk")
    return risk
