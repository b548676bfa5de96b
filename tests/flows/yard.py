"""Where runs of flows are tried turn by turn: a town whose jobs wait for ever, and end when the test says so."""

from dataclasses import replace
from typing import Any

from falaj.core.ref import Ref
from falaj.flows.flow_loop import FlowLoop
from falaj.flows.flow_plans import STEP_COMMAND
from falaj.flows.records import FlowPlan, RunView, StepPlan
from falaj.flows.result_collector import ResultCollector
from falaj.jobs import state_machine
from falaj.jobs.records import SUCCEEDED, JobSpec, RoleSpec
from falaj.store.ledger import LedgerWriter
from falaj.store.reconcile_loop import LoopIteration, system_context
from tests.town import Town

SPEC = JobSpec(STEP_COMMAND, (RoleSpec(cpus=0.1, memory="100MiB"),))


def function(name: str, **more: Any) -> StepPlan:
    """A step that is a function; its result is not remembered, unless the test is about that."""
    return StepPlan(name, entry=f"f.py:{name}", spec=SPEC, **{"cache": False, **more})


def taken(step: str, out: str = "") -> dict[str, str]:
    """What a step gives."""
    return {"step": step, "out": out}


class Yard:
    """One owner, one project, one loop; `end` says how a job ended, and what its step gave."""

    def __init__(self, town: Town, who: str = "amal") -> None:
        self.town, self.house = town, town.house
        self.loop = FlowLoop(town.house.ledger, town.house.desks["flows"])
        self.me = town.as_(who)
        self.hearing = ResultCollector(town.house.ledger, town.house.settings.zone)
        self._token = 0

    def save(self, name: str, *steps: StepPlan, **more: Any) -> Ref:
        """A flow of these steps; its program is a small file."""
        code = Ref.parse("code:fraud/flows@v1")
        saved: Ref = self.me.flows.add(Ref("flow", "fraud", name), FlowPlan(steps, **more), code=code).ref
        return saved

    def start(self, name: str, *steps: StepPlan, **more: Any) -> RunView:
        """A run that was begun, and looked at once."""
        begun: RunView = self.me.flows.start(self.save(name, *steps, **more))
        return self.turn(begun)

    def turn(self, run: RunView, times: int = 1, *, again: bool = False) -> RunView:
        """The run after the loop's turns; `again`: by a replica that knows nothing yet."""
        self._token += again
        for _ in range(times):
            self.loop.step(LoopIteration(system_context("flows", self.house.settings.zone), self._token, lambda: True))
        return self.look(run)

    def look(self, run: RunView) -> RunView:
        """The run as it stands."""
        found: RunView = self.me.flows.look(run.ref)
        return found

    def jobs(self) -> list[str]:
        """The jobs that wait, by name."""
        page = self.me.jobs.list(project="fraud", state="waiting", limit=1000)
        return sorted(one.ref.name for one in page.jobs)

    def end(self, job: str, value: Any = None, state: str = SUCCEEDED, error: str = "", **outputs: str) -> None:
        """What the dispatcher writes when an attempt is over: first what it said, then that it ended."""
        ledger, ctx = self.house.ledger, system_context("jobs", self.house.settings.zone)
        ctx = replace(ctx, tenant="bank")

        def work(tx: LedgerWriter) -> None:
            old = tx.need(Ref("job", "fraud", job))
            said = {"kind": "result", **({"error": error} if error else {"value": value})}
            self.hearing(replace(old, body={**old.body, "attempt": {"id": f"{job}-1"}}), (said,))
            body = {**old.body, "state": state, "ended": ctx.now(), "note": "exit code 1" if error else ""}
            body["outputs"] = {**old.body["outputs"], **outputs}
            kept = tx.put(old.key, body, rev=old.rev, terms=state_machine.build_index_terms(body))
            tx.emit("jobs.end", kept.ref, state=state)

        ledger.retry(ctx, work)

    def states(self, run: RunView) -> dict[str, str]:
        """How its steps stand."""
        return {one.name: one.state for one in self.look(run).steps}
