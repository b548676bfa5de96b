"""`python -m tests.security.rules`: semgrep with the rules of this house over the package, in a process of its own.

The rules are tried on lines that they must find and must leave alone in the same run, so a rule that finds nothing any
more fails, too. semgrep lives in an environment of its own and is not asked to call anybody.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.servers.peers import peer
from tests.servers.process import Missing

ROOT = Path(__file__).parents[2]
SEMGREP = ("semgrep==1.182.0",)
CASES = "tests/security/rules_cases.py"
Finding = tuple[str, int, str]
"""File, line and rule."""


def main() -> int:
    try:
        found = scan(("src/falaj", CASES))
    except Missing as missing:
        print(f"rules not checked: {missing}", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    wrong = [f"{path}:{line}: {rule}" for path, line, rule in found if path != CASES]
    wanted, got = expected(), {one for one in found if one[0] == CASES}
    wrong += [f"{path}:{line}: {rule} does not find this" for path, line, rule in sorted(wanted - got)]
    wrong += [f"{path}:{line}: {rule} finds this and must not" for path, line, rule in sorted(got - wanted)]
    print("\n".join(wrong) or f"{len({rule for _, _, rule in wanted})} rules hold")
    return 1 if wrong else 0


def scan(paths: Iterable[str]) -> set[Finding]:
    """What semgrep finds below these paths."""
    program = peer("semgrep", *SEMGREP) / "semgrep"
    quiet = ["--metrics=off", "--disable-version-check", "--quiet", "--json", "--no-git-ignore", "--jobs=2"]
    words = [str(program), "scan", *quiet, "--config", "tests/security/rules.yml", *paths]
    # Its programs find each other by PATH.
    env = {**os.environ, "PATH": f"{program.parent}:{os.environ.get('PATH', '')}", "SEMGREP_SEND_METRICS": "off"}
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=ROOT, env=env)
    if done.returncode not in (0, 1):
        raise SystemExit(f"semgrep ended with {done.returncode}: {done.stderr[-2000:]}{done.stdout[-2000:]}")
    told = json.loads(done.stdout)
    if told["errors"]:
        raise SystemExit(f"semgrep could not read all: {json.dumps(told['errors'])[:2000]}")
    return {(one["path"], one["start"]["line"], one["check_id"].rpartition(".")[2]) for one in told["results"]}


def expected() -> set[Finding]:
    """What the cases say."""
    lines = (ROOT / CASES).read_text(encoding="utf-8").splitlines()
    marks = [(number, re.search(r"# finds: (.+)$", line)) for number, line in enumerate(lines, 1)]
    return {(CASES, number, rule) for number, mark in marks if mark for rule in mark[1].split(", ")}


if __name__ == "__main__":
    sys.exit(main())
