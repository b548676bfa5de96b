"""What a look at a set-up finds: falaj doctor, upgrade check and deploy check tell it alike."""

from falaj.core.data import dataclass


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing that was looked at."""

    check: str
    state: str
    found: str
    fix: str = ""
