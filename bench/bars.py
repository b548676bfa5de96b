"""Bars: what a bench is held to. A line for people where each is measured, then one last line of JSON with all."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

BARS: dict[str, dict[str, Any]] = {}


def told(bench: str, parts: Sequence[Callable[[], None]], **more: Any) -> None:
    """Run the parts that were named on the command line, or all, and say the last line."""
    chosen = [word for word in sys.argv[1:] if not word.startswith("--")]
    for part in parts:
        if not chosen or part.__name__ in chosen:
            print(f"\n{part.__name__}", flush=True)
            try:
                part()
            except SystemExit as failed:  # the others are worth knowing all the same
                print(f"  FAILED: {failed}", flush=True)
                BARS[f"{part.__name__}_ran"] = {"value": 0, "bar": "== 1", "ok": False}
    missed = [name for name, found in BARS.items() if not found["ok"]]
    print(f"\n{len(BARS) - len(missed)} of {len(BARS)} bars met" + (f"; missed: {', '.join(missed)}" if missed else ""))
    print(json.dumps({"bench": bench, **more, "bars": BARS}))


def bar(name: str, value: float, sign: str, limit: float, note: str = "") -> None:
    """One bar: its value and its limit, met or missed."""
    good = {"<=": value <= limit, ">=": value >= limit, "==": value == limit}[sign]
    BARS[name] = {"value": round(value, 4), "bar": f"{sign} {limit:.4g}", "ok": bool(good)}
    print(f"    {name:<34} {value:10.3f} ({sign} {limit:.3g}) {'ok' if good else 'MISSED':7} {note}", flush=True)
