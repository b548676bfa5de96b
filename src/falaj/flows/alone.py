"""A flow in one process, for whoever writes it: the same functions, one after the other, and no job.

What is read is checked out for reading; what is written stays in a folder that is named at the end. Verbs and gates are
told and not done: a mistake of a draft changes nothing.
"""

import json
import os
import subprocess  # nosec B404 - the command is the caller's own, run beside them
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from falaj.core.context import Actor, Context
from falaj.core.errand import Here
from falaj.core.errors import UserCodeFailed
from falaj.core.flow import Flow, writing_to
from falaj.core.ref import Ref
from falaj.core.sketch import kind_of
from falaj.flows import turns
from falaj.flows.decide import in_order, needs
from falaj.flows.plans import MOST_ITEMS, check_params
from falaj.flows.records import FUNCTION, JOB, SKIPPED, SUCCEEDED, Body, FlowPlan, RunView, StepPlan, StepView
from falaj.worker.steps import as_json, load


class Desk:
    """Where a flow is tried out: its folder, what was checked out, and what the steps gave so far."""

    def __init__(self, here: Here, plan: FlowPlan, file: Path, params: dict[str, Any]) -> None:
        self._here, self._plan, self._file = here, plan, file.resolve()
        self.folder = Path(tempfile.mkdtemp(prefix="falaj-flow-"))
        self._opened: dict[str, Path] = {}
        said = {"cause": "", "begun_by": "you", "fresh": True, "number": 0}
        ctx = Context(Actor("you", "here"), "here")
        self.body = turns.new_turn(ctx, Ref("flow", "alone", "alone"), plan, check_params(plan, params), said)

    def run(self, step: StepPlan) -> None:
        """One step, all its items."""
        one, body, plan = self.body["steps"][step.name], self.body, self._plan
        bad = any(body["steps"][name]["state"] != SUCCEEDED for name in needs(step))
        if (bad and not step.always) or not turns.holds(step, body, plan):
            one |= {"state": SKIPPED}
            return
        sys.stdout.write(f"{step.name}: {step.entry or ' '.join(step.spec.command if step.spec else ())}\n")
        for at in range(len(turns.values_of(step, body, plan, MOST_ITEMS))):
            one["items"].append(self._item(step, at))
        one |= {"state": SUCCEEDED}

    def _item(self, step: StepPlan, at: int) -> Body:
        began = time.time()
        given = {name: turns.resolved(source, self.body, self._plan) for name, source in step.takes.items()}
        given |= {step.over: given[step.over][at]} if step.over else {}
        made = {name: str(self.folder / f"{step.name}-{at}" / name) for name in step.outputs}
        value = None
        if step.kind not in (FUNCTION, JOB):
            sys.stdout.write(f"  not done here: {json.dumps(given, default=str)[:500]}\n")
        else:
            texts = [name for name, one in step.takes.items() if isinstance(one, dict) and one.get("text")]
            files = {name: value if name in texts else self._files(value) for name, value in given.items()}
            if step.kind == FUNCTION:
                value = self._call(step, files, made)
            else:
                self._command(step, files, made)
        return {
            **turns.new_item(),
            "state": SUCCEEDED,
            "value": value,
            "outputs": made,
            "at": began,
            "end": time.time(),
        }

    def _call(self, step: StepPlan, given: dict[str, Any], made: dict[str, str]) -> Any:
        function = load(self._file.parent, step.entry)
        with writing_to(made):
            return as_json(function(**given), step.entry)

    def _command(self, step: StepPlan, given: dict[str, Any], made: dict[str, str]) -> None:
        env = {f"FALAJ_OUTPUT_{name.upper()}": path for name, path in made.items()}
        for name, value in given.items():
            many = value if isinstance(value, list) and isinstance(next(iter(value), None), Path) else None
            kind = "INPUT" if many or isinstance(value, Path) else "PARAM"
            parts = {f"{name}_{at}": one for at, one in enumerate(many)} if many else {name: value}
            env |= {f"FALAJ_{kind}_{part.upper()}": str(one) for part, one in parts.items()}
        for path in made.values():
            Path(path).mkdir(parents=True, exist_ok=True)
        words = step.spec.command if step.spec else ()
        whole = {**os.environ, **(step.spec.env if step.spec else {}), **env}
        code = subprocess.run(words, check=False, cwd=self._file.parent, env=whole).returncode  # noqa: S603  # nosec B603
        if code:
            raise UserCodeFailed(f"{step.name} ended with code {code}", "read what it wrote above")

    def _files(self, value: Any) -> Any:
        """A folder for what names a version, or for what a step here has written."""
        if isinstance(value, list) and value and all(map(self._is_file, value)):
            return [self._files(one) for one in value]
        if not self._is_file(value):
            return value
        if not kind_of(value):
            return Path(value)
        if value not in self._opened:
            ref = Ref.parse(value)
            self._opened[value] = self.folder / "inputs" / f"{ref.kind}-{ref.project}-{ref.name}-{len(self._opened)}"
            self._here.catalog.checkout(ref, str(self._opened[value]))
        return self._opened[value]

    def _is_file(self, value: Any) -> bool:
        return isinstance(value, str) and bool(kind_of(value) or value.startswith(f"{self.folder}/"))


def run_alone(here: Here, flow: Flow, plan: FlowPlan, file: Path, params: dict[str, Any]) -> RunView:
    """Run a flow in this process; what it gave, as a run that nobody keeps."""
    desk = Desk(here, plan, file, params)
    steps = {step.name: step for step in plan.steps}
    for name in in_order(plan):
        desk.run(steps[name])
    body = desk.body
    shown = tuple(
        StepView(name, body["steps"][name]["state"], (), turns.given_by(steps[name], body["steps"][name]))
        for name in body["order"]
    )
    ref = Ref("turn", flow.ref.project, f"{flow.ref.name}-local")
    return RunView(ref, flow.ref, SUCCEEDED, body["params"], shown, "you", note=f"outputs lie in {desk.folder}")
