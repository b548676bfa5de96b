"""The verdict: a table for people, and one line of JSON for machines."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Check:
    """One thing that must hold, and what was found."""

    name: str
    ok: bool
    said: str = ""


@dataclass
class Verdict:
    """All checks of all grounds."""

    seed: str
    minutes: float
    folder: str
    checks: dict[str, list[Check]] = field(default_factory=dict)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        every = [check for checks in self.checks.values() for check in checks]
        return bool(every) and all(check.ok for check in every)

    def give(self, ground: str, path: Path) -> None:
        """Write down what was found of one ground."""
        checks = [asdict(check) for check in self.checks[ground]]
        path.write_text(json.dumps({"checks": checks, "figures": self.figures[ground]}))

    def take(self, ground: str, path: Path, code: int) -> None:
        """Take in what `give` wrote; a ground that did not come so far has failed."""
        if not path.exists():
            self.checks[ground] = [Check("it came to its end", False, f"ended with {code}")]
            self.figures[ground] = {}
            return
        found = json.loads(path.read_text())
        self.checks[ground] = [Check(**one) for one in found["checks"]]
        self.figures[ground] = found["figures"]

    def table(self) -> str:
        """For people."""
        lines = []
        for ground, checks in self.checks.items():
            lines += ["", f"{ground}: " + ", ".join(f"{name} {value}" for name, value in self.figures[ground].items())]
            lines += [f"  {'ok  ' if check.ok else 'FAIL'}  {check.name:<34} {check.said}" for check in checks]
        return "\n".join(lines)

    def line(self) -> str:
        """For machines."""
        checks = {ground: {check.name: check.ok for check in found} for ground, found in self.checks.items()}
        told = {"soak": {"seed": self.seed, "minutes": self.minutes, "folder": self.folder}, "ok": self.ok}
        return json.dumps({**told, "checks": checks, "figures": self.figures})
