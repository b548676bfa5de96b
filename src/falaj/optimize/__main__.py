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
from falaj.optimize.records import OptimizePlan, parse_plan

_FOLDER_FIELDS = ("model", "out", "code", "data", "evaluate")
NOTHING_CHOSEN_EXIT_CODE = 3
"""The exit code, so that a job that chose nothing publishes nothing."""


def main(arguments: Sequence[str]) -> int:
    """The command."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # being ended is being interrupted: nothing stays
    with _reserve_stdout() as lines:

        def write_line(kind: str, value: Any) -> None:
            lines.write(json.dumps({kind: value}) + "\n")
            lines.flush()

        try:
            if len(arguments) != 1:
                raise Invalid("there is no plan", "python -m falaj.optimize PLAN.json")
            return run_optimization(read_plan(arguments[0]), write_line)
        except FalajError as error:
            write_line("error", error.wire())
            return error.exit_code
        except KeyboardInterrupt:
            return 128 + signal.SIGINT


def run_optimization(plan: OptimizePlan, write_line: Any) -> int:
    """Try everything, say everything, and leave the chosen one in the plan's folder."""
    _require_libraries()
    from falaj.optimize.evidence import to_json_values, write_chosen
    from falaj.optimize.optimization_trial import OptimizationTrial, list_warnings
    from falaj.optimize.pareto_front import choose_variant, find_pareto_front

    with tempfile.TemporaryDirectory(prefix="falaj-optimize-") as work_folder:
        trial = OptimizationTrial(plan, Path(work_folder), lambda name: write_line("step", name))
        variants = trial.measured(list(trial.variants()))
        front_names = find_pareto_front(variants)
        variants = [replace(variant, frontier=variant.name in front_names) for variant in variants]
        chosen, notes = choose_variant(variants), list_warnings(trial)
        for variant in variants:
            write_line("tried", to_json_values(variant))
        if chosen:
            write_chosen(trial, variants, chosen, notes)
        parity = trial.original.parity
        ended = {
            "chosen": chosen.name if chosen else None, "measure": trial.kind, "kind": trial.original.kind,
            "judged": len(trial.judge), "parity": parity.error if parity else None, "notes": notes,
        }  # fmt: skip
        write_line("ended", ended)
    return 0 if chosen else NOTHING_CHOSEN_EXIT_CODE


def read_plan(text: str) -> OptimizePlan:
    """From a file, or the JSON itself."""
    try:
        plan_values = json.loads(text if text.lstrip().startswith("{") else Path(text).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Invalid(f"the plan cannot be read: {str(error)[:200]}", "python -m falaj.optimize PLAN.json") from error
    plan = parse_plan(plan_values)
    return replace(plan, **{name: os.path.expandvars(getattr(plan, name)) for name in _FOLDER_FIELDS})


def _require_libraries() -> None:
    """Libraries there, and quiet."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise Invalid(f"{error.name} is not installed", "pip install 'falaj[optimize]'") from error
    from falaj.optimize.untrusted_code import silence_libraries

    silence_libraries()


@contextlib.contextmanager
def _reserve_stdout() -> Any:
    """Standard output is ours alone: what the model's code or a library prints goes to standard error."""
    sys.stdout.flush()
    output: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        yield output
    finally:
        with contextlib.suppress(BrokenPipeError):
            output.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
