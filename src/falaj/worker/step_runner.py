"""`python -m falaj.worker.step_runner`: runs one function of a flow in an attempt, and tells what it gave.

What to call stands in FALAJ_PARAM_STEP: {"entry": "file.py:function", "args": {…}, "files": {parameter: role(s)}}.
The function's value goes out as one fact `result`, and what went wrong as `error`, in the words people read first.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from falaj.core.errors import FalajError, Invalid
from falaj.core.flow_definition import Step
from falaj.worker.outbox import Outbox

STEP_VARIABLE = "FALAJ_PARAM_STEP"
RESULT_KIND = "result"
MAX_RESULT_BYTES = 60_000
"""Of what a step returns: it travels as one line of the outbox."""
MAX_ERROR_CHARS = 2_000


def main() -> int:
    """Run the step of this attempt; the exit code."""
    outbox = Outbox(os.environ.get("FALAJ_OUTBOX", "outbox"), "rank-0")
    try:
        value = run_step(json.loads(os.environ.get(STEP_VARIABLE, "{}")), Path.cwd())
    except FalajError as error:
        import traceback

        traceback.print_exc()
        return _report_failure(outbox, f"{error.message} ({error.hint})" if error.hint else error.message)
    except BaseException as error:
        # Whatever a step raises is its user's to read; the process ends as Python would end it.
        outbox.tell(RESULT_KIND, error=f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS])
        raise
    outbox.tell(RESULT_KIND, value=value)
    return _report_failure(outbox, "what it returned could not be told") if outbox.lost else 0


def run_step(step_call: Mapping[str, Any], folder: Path) -> Any:
    """Call the function that is named, with what it is given; its value as JSON has it."""
    function = load_step_function(folder, str(step_call["entry"]))
    file_arguments = {name: _to_input_paths(roles) for name, roles in step_call.get("files", {}).items()}
    return to_plain_json(function(**{**step_call.get("args", {}), **file_arguments}), str(step_call["entry"]))


def load_step_function(folder: Path, entry: str) -> Any:
    """The plain function of an entry `file.py:function`."""
    name, _, attribute = entry.partition(":")
    step = getattr(load_python_file(folder / name), attribute, None)
    if not isinstance(step, Step):
        raise Invalid(f"{name} has no step {attribute}", "mark it with @step, at the top of the file")
    return step.function


def load_python_file(path: Path) -> ModuleType:
    """A Python file as a module; its folder comes first where it looks for others."""
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    # A file that is called as something that is loaded already must not stand in for it.
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_flow"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise Invalid(f"there is no Python file {path.name}", "a flow is a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def to_plain_json(value: Any, entry: str) -> Any:
    """The value as it will be read; Invalid where it is no small JSON."""
    hint = "return numbers, texts, lists and dicts; write anything else as files to step.output(…)"
    name = entry.partition(":")[2]
    try:
        text = json.dumps(value, allow_nan=False, default=_to_plain_number)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"what {name} returned is no JSON: {str(error)[:200]}", hint) from None
    if len(text.encode()) > MAX_RESULT_BYTES:
        raise Invalid(f"what {name} returned has {len(text)} bytes, and at most {MAX_RESULT_BYTES} are kept", hint)
    return json.loads(text)


def _to_plain_number(value: Any) -> Any:
    """Numbers of numpy and torch are numbers."""
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    raise TypeError(f"a {type(value).__name__}")


def _to_input_paths(roles: Any) -> Any:
    if isinstance(roles, list):
        return [_to_input_paths(role) for role in roles]
    return Path(os.environ[f"FALAJ_INPUT_{str(roles).upper()}"])


def _report_failure(outbox: Outbox, error: str) -> int:
    outbox.tell(RESULT_KIND, error=error[:MAX_ERROR_CHARS])
    return 1


if __name__ == "__main__":
    sys.exit(main())
