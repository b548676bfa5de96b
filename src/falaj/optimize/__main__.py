"""`python -m falaj.optimize PLAN.json`: optimise a model, as lines of JSON.

{"step": NAME} for what is done now, {"tried": …} for each variant with all its figures, and at the end {"ended": …} or
{"error": …}. The chosen variant lies in the plan's `out` then; where none is chosen, nothing does. A plan may be given
as JSON itself. Names of folders may be those of variables of the attempt: "$FALAJ_INPUT_PARENT".
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from falaj.core.errors import FalajError, Invalid
from falaj.optimize.records import Plan, plan_of

_FOLDERS = ("model", "out", "code", "data", "evaluate")
NOTHING_CHOSEN = 3
"""The exit code, so that a job that chose nothing publishes nothing."""


def main(arguments: Sequence[str]) -> int:
    """The command."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # being ended is being interrupted: nothing stays
    with _own_lines() as lines:

        def say(kind: str, what: Any) -> None:
            lines.write(json.dumps({kind: what}) + "\n")
            lines.flush()

        try:
            if len(arguments) != 1:
                raise Invalid("there is no plan", "python -m falaj.optimize PLAN.json")
            return optimise(read_plan(arguments[0]), say)
        except FalajError as error:
            say("error", error.wire())
            return error.exit_code
        except KeyboardInterrupt:
            return 128 + signal.SIGINT


def optimise(plan: Plan, say: Any) -> int:
    """Try everything, say everything, and leave the chosen one in the plan's folder."""
    _ready()
    from falaj.optimize.evidence import plain, write
    from falaj.optimize.frontier import choose, frontier
    from falaj.optimize.trial import Trial, warnings_of

    with tempfile.TemporaryDirectory(prefix="falaj-optimize-") as work:
        trial = Trial(plan, Path(work), lambda name: say("step", name))
        rows = trial.measured(list(trial.variants()))
        best = frontier(rows)
        rows = [replace(one, frontier=one.name in best) for one in rows]
        chosen, notes = choose(rows), warnings_of(trial)
        for one in rows:
            say("tried", plain(one))
        if chosen:
            write(trial, rows, chosen, notes)
        parity = trial.original.parity
        ended = {
            "chosen": chosen.name if chosen else None, "measure": trial.kind, "kind": trial.original.kind,
            "judged": len(trial.judge), "parity": parity.error if parity else None, "notes": notes,
        }  # fmt: skip
        say("ended", ended)
    return 0 if chosen else NOTHING_CHOSEN


def read_plan(text: str) -> Plan:
    """From a file, or the JSON itself."""
    try:
        found = json.loads(text if text.lstrip().startswith("{") else Path(text).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Invalid(f"the plan cannot be read: {str(error)[:200]}", "python -m falaj.optimize PLAN.json") from error
    plan = plan_of(found)
    return replace(plan, **{name: os.path.expandvars(getattr(plan, name)) for name in _FOLDERS})


def _ready() -> None:
    """Libraries there, and quiet."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise Invalid(f"{error.name} is not installed", "pip install 'falaj[optimize]'") from error
    from falaj.optimize.strangers import quiet

    quiet()


@contextlib.contextmanager
def _own_lines() -> Any:
    """Standard output is ours alone: what the model's code or a library prints goes to standard error."""
    sys.stdout.flush()
    ours: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        yield ours
    finally:
        with contextlib.suppress(BrokenPipeError):
            ours.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
