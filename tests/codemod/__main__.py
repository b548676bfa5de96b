"""Renames definitions and moves modules over src, tests, bench, examples and documents.

    python -m tests.codemod index                     build the index of references (after any change of a file)
    python -m tests.codemod list falaj.store [--json] definitions whose names the rules of language object to
    python -m tests.codemod find falaj.store.ledger.Ledger.lease    what one name means and where it is written
    python -m tests.codemod public                    every public and persisted word
    python -m tests.codemod apply MAP.json [--dry-run] [--public] [--leave-ambiguous]

A map: {"falaj.store.bells.Bells": "CommitListeners", "falaj.store.bells.Bells.hang.<arg>kinds": "record_kinds",
"falaj.store.blobs.read.<local>one": "blob", "module:falaj.store.bells": "falaj.store.commit_listeners",
"ambiguous": {"tests/store/test_x.py:12:8": "add"}}. An empty text leaves an ambiguous place as it is.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from tests.codemod.apply import Plan, Planner, write_edits
from tests.codemod.index import Index, load_index
from tests.codemod.listing import as_json, format_objections, list_objections
from tests.codemod.public_words import PublicWords

ROOT = Path(__file__).parents[2]


def main(arguments: list[str]) -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m tests.codemod", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("index")
    commands.add_parser("public")
    listing = commands.add_parser("list")
    listing.add_argument("package")
    listing.add_argument("--json", action="store_true")
    commands.add_parser("find").add_argument("symbol")
    apply = commands.add_parser("apply")
    apply.add_argument("map", type=Path)
    apply.add_argument("--dry-run", action="store_true", help="report, and write nothing")
    apply.add_argument("--public", action="store_true", help="allow renames of public and persisted words")
    apply.add_argument("--leave-ambiguous", action="store_true", help="leave undecided places as they are")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    index = load_index(ROOT)
    print(
        f"index: {len(index.files)} files, {len(index.definitions)} definitions, {time.monotonic() - start:.0f} s",
        file=sys.stderr,
    )
    if options.command == "public":
        print("\n".join(PublicWords(index).dump()))
    elif options.command == "list":
        entries = list_objections(index, options.package)
        print(as_json(entries) if options.json else "\n".join(format_objections(entries)))
    elif options.command == "find":
        print("\n".join(describe(index, options.symbol)))
    elif options.command == "apply":
        mapping = json.loads(options.map.read_text())
        return apply_map(index, mapping, options)
    return 0


def describe(index: Index, symbol: str) -> list[str]:
    """Return the definitions that share a name with this one, and every place where it is written."""
    family = index.family(symbol)
    lines = [f"{s} ({d.path}:{d.line})" for s, d in index.definitions.items() if index.family(s) == family]
    return lines + [
        f"  {path}:{site.line}:{site.column + 1} {site.kind}"
        for path, file in index.files.items()
        for site in file.sites
        if any(index.family(symbol) == family for symbol in site.symbols)
    ]


def apply_map(index: Index, mapping: dict[str, object], options: argparse.Namespace) -> int:
    """Plan, refuse or write, format, and report."""
    planner = Planner(index, mapping, public=options.public)
    plan = planner.make()
    undecided = bool(plan.ambiguous) and not options.leave_ambiguous
    write_report(plan)
    if plan.problems or undecided or options.dry_run:
        print("nothing was written; .codemod/report.txt says more", file=sys.stderr)
        return 1 if plan.problems or undecided else 0
    changed = list(write_edits(ROOT, plan.edits))
    moved = planner.moves.move_files()
    paths = [moved.get(path, path) for path in changed if path.endswith(".py")]
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run([*ruff, "check", "-q", "--select", "I,RUF022,RUF023", "--fix", *paths], cwd=ROOT, check=False)
    subprocess.run([*ruff, "format", "-q", *paths], cwd=ROOT, check=True)
    subprocess.run([*ruff, "check", "-q", "--output-format", "concise", *paths], cwd=ROOT, check=False)
    print(f"{len(changed)} files changed, {len(moved)} moved")
    return 0


def write_report(plan: Plan) -> None:
    """Print counts, problems and ambiguous places; the rest goes into .codemod/report.txt."""
    print(", ".join(f"{count} {kind}s" for kind, count in sorted(plan.counts.items())) or "no sites")
    for problem in dict.fromkeys(plan.problems):
        print(f"refused: {problem}")
    for place, question in plan.ambiguous.items():
        print(f"ambiguous: {place}: {question}")
    print(f"{len(plan.guessed)} renamed on receivers of unknown type; {len(plan.notes)} notes on texts")
    lines = [*plan.problems, *(f"ambiguous: {p}: {q}" for p, q in plan.ambiguous.items())]
    lines += [f"renamed though its type is unknown: {place}" for place in plan.guessed] + plan.notes
    (ROOT / ".codemod").mkdir(exist_ok=True)
    (ROOT / ".codemod" / "report.txt").write_text("\n".join(lines) + "\n")
    (ROOT / ".codemod" / "ambiguous.json").write_text(json.dumps({"ambiguous": plan.ambiguous}, indent=1))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
