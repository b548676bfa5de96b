"""Reads the table of docs/threat-model.md: which attack tests prove each row, and whether they exist.

Run by `make check`: python -m tests.security.threat_model
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "threat-model.md"
ATTACKS = ROOT / "tests" / "security" / "attacks"
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
_MODULE = re.compile(r"`([\w/]+(?:\.py|/))`")


class Threat(NamedTuple):
    """One row of the table."""

    line: int
    threat: str
    modules: tuple[str, ...]
    tests: tuple[tuple[str, str], ...]


def read_threats(text: str) -> Iterator[Threat]:
    """The rows of every table whose last column is headed "attack test"."""
    in_table = False
    for line, row in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in row.strip().strip("|").split("|")]
        if not row.startswith("|"):
            in_table = False
        elif cells[-1] == "attack test":
            in_table = True
        elif in_table and set(row) - set("|-: "):
            yield Threat(line, cells[0], tuple(_MODULE.findall(cells[-2])), tuple(_TEST.findall(cells[-1])))


@cache
def find_tests(path: Path) -> frozenset[str]:
    """The names of the test functions that a file defines, at the top or in classes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def find_faults(threats: list[Threat]) -> Iterator[str]:
    """Rows without a test, tests and modules that do not exist, and attack files that no row names."""
    if not threats:
        yield 'no table with a column "attack test" was found'
    for threat in threats:
        yield from (f"line {threat.line}: {fault}" for fault in find_row_faults(threat))
    named = {ROOT / file for threat in threats for file, _ in threat.tests}
    for path in sorted(ATTACKS.glob("test_*.py")):
        if path not in named:
            yield f"{path.relative_to(ROOT)} proves no row: name it in the table"


def find_row_faults(threat: Threat) -> Iterator[str]:
    """What is wrong with one row."""
    if not threat.tests:
        yield f"{threat.threat!r} names no attack test"
    for file, name in threat.tests:
        if not (ROOT / file).is_file():
            yield f"{file} does not exist"
        elif name and name not in find_tests(ROOT / file):
            yield f"{file} defines no {name}"
    for module in threat.modules:
        if not (ROOT / "src" / "falaj" / module).exists() and not (ROOT / module).exists():
            yield f"{module} does not exist"


def main() -> int:
    """Print what is wrong with the page; the exit code says whether anything is."""
    faults = list(find_faults(list(read_threats(PAGE.read_text(encoding="utf-8")))))
    for fault in faults:
        print(f"docs/threat-model.md: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
