"""The search, over machines whose speed and memory are formulas: what it keeps is what was measured fastest."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from falaj.core.errors import UserCodeFailed
from falaj.train.options import Options
from falaj.train.probe import ScriptMeasurement
from falaj.train.search import OptionChanges, TuningResult, TuningSearch, TuningTrial

GIB = 1 << 30


class Imagined:
    """A machine: seconds and bytes of a step as functions of the options and the micro-batch."""

    def __init__(self, batch: int = 96, kind: str = "cuda", free: int = 80 * GIB, **said: Any) -> None:
        self.batch, self.free, self.said = batch, free, Options(**said)
        self.chip = {"kind": kind, "bf16": True, "threads": 4, "choices": [1, 4, 8]}
        self.speed: Callable[[Options, int], float] = lambda options, micro: 100.0
        self.memory: Callable[[Options, int], float] = lambda options, micro: micro * GIB / 4
        self.broken: Callable[[Options], str] = lambda options: ""
        self.input = 0.0
        self.ran: list[OptionChanges] = []

    def __call__(self, changes: OptionChanges) -> ScriptMeasurement:
        self.ran.append(changes)
        options = replace(self.said, **changes)
        micro = options.micro or self.batch
        facts: dict[str, Any] = {
            "batch": self.batch, "micro": micro, "options": asdict(options), "shape": "s", "chip": self.chip,
            "free_bytes": self.free,
        }  # fmt: skip
        if text := self.broken(options):
            return ScriptMeasurement(**facts, failed=text)
        work, units = int(self.memory(options, micro)), self.speed(options, micro)
        if work > self.free:
            return ScriptMeasurement(**facts, oom=True)
        step_s = self.batch / units
        phases = {"input": self.input * step_s, "work": step_s, "apply": 0.0}
        return ScriptMeasurement(
            **facts, units_s=units, step_s=step_s, phases=phases, work_bytes=work, apply_bytes=5 * GIB
        )


def tuned(machine: Imagined, **more: Any) -> TuningResult:
    return TuningSearch(machine, **more).found()


def names(found: TuningResult) -> list[str]:
    return [one.name for one in found.tried]


def test_nothing_helps_so_nothing_changes() -> None:
    found = tuned(Imagined())
    assert found.changes == {}
    assert found.units_s == found.before_units_s == 100
    assert {one.verdict for one in found.tried[1:]} <= {"slower", "measured"}


def test_what_is_faster_is_kept_and_what_is_kept_was_measured() -> None:
    machine = Imagined()
    machine.speed = lambda options, micro: (200 if options.compile is True else 100) * (1.5 if micro == 24 else 1)
    heard: list[TuningTrial] = []
    found = tuned(machine, report_trial=heard.append)
    assert found.changes == {"compile": True, "micro": 24}
    assert found.units_s == 300
    assert tuple(heard) == found.tried
    assert found.units_s == max(one.units_s for one in found.tried)


def test_the_way_to_compile_that_takes_longest_comes_last_if_at_all() -> None:
    machine, slowest = Imagined(), "compiled, max-autotune-no-cudagraphs"
    assert slowest not in names(tuned(machine))
    machine.speed = lambda options, micro: {True: 110.0, "blocks": 130.0}.get(options.compile, 100.0)
    found = tuned(machine)
    assert found.changes == {"compile": "blocks"}
    assert slowest in names(found)


def test_a_script_that_does_not_fit_gets_the_largest_micro_batch_that_does() -> None:
    machine = Imagined(batch=5040)
    machine.memory = lambda options, micro: 10 * GIB + micro * GIB / 5
    machine.speed = lambda options, micro: 100.0 * micro / (micro + 5)
    found = tuned(machine)
    assert found.before_units_s == 0
    assert (found.largest, found.brim) == pytest.approx((302, 350), rel=0.01)
    assert found.changes == {"micro": 315}  # which is what the search began with, and still not at the end of memory
    assert all(5040 % micro == 0 for change in machine.ran if (micro := change.get("micro")))


def test_by_speed_and_not_by_size() -> None:
    machine = Imagined(batch=4096, kind="cpu")
    machine.memory = lambda options, micro: micro * 1000
    machine.speed = lambda options, micro: 1000 / (1 + abs(micro - 128) / 64)
    assert tuned(machine).changes == {"micro": 128}


def test_activations_are_recomputed_only_where_memory_is_short() -> None:
    machine = Imagined(batch=1024, free=16 * GIB)
    machine.memory = lambda options, micro: 2 * GIB + micro * GIB / (64 if options.activation == "blocks" else 4)
    machine.speed = lambda options, micro: (0.8 if options.activation == "blocks" else 1) * 1000 * micro / (micro + 64)
    assert tuned(machine).changes == {"activation": "blocks", "micro": 512}
    machine.free = 1000 * GIB
    roomy = tuned(machine)
    assert "activation" not in roomy.changes
    assert not [name for name in names(roomy) if "activation" in name]


def test_what_the_script_says_is_left_alone() -> None:
    machine = Imagined(kind="cpu", precision="fp32", compile="reduce-overhead", micro=8, threads=2, activation="blocks")
    found = tuned(machine)
    assert found.changes == {}
    assert machine.ran == [{}]


def test_no_process_gets_more_than_its_share() -> None:
    machine = Imagined(batch=96)
    machine.speed = lambda options, micro: float(micro)
    found = tuned(machine, world=4)
    assert found.changes == {}  # its share is what each process takes by itself
    assert found.units_s == 24
    assert [change for change in machine.ran[1:] if change["micro"] > 24] == []
    machine.speed = lambda options, micro: 1.0 / micro
    assert tuned(machine, world=4).changes == {"micro": 1}


def test_on_cpus_floats_and_threads_are_measured() -> None:
    machine = Imagined(kind="cpu")
    rate = {1: 60.0, 8: 90.0}
    machine.speed = lambda options, micro: (
        rate.get(options.threads, 100.0) * (0.5 if "bf16" in options.precision else 1)
    )
    found = tuned(machine)
    assert found.changes == {}
    assert {"precision bf16", "1 threads", "8 threads"} <= set(names(found))
    rate[8] = 140.0
    assert tuned(machine).changes == {"threads": 8}


def test_reading_ahead_is_tried_where_input_is_waited_for() -> None:
    machine = Imagined()
    machine.speed = lambda options, micro: 150.0 if options.ahead == 16 else 100.0
    assert "ahead" not in tuned(machine).changes
    machine.input = 0.3
    assert tuned(machine).changes == {"ahead": 16}


def test_a_lever_that_breaks_is_a_line_of_the_table() -> None:
    machine = Imagined()
    machine.broken = lambda options: "Traceback\nRuntimeError: no compiler" if options.compile else ""
    found = tuned(machine)
    assert found.changes == {}
    assert ("compiled", "failed: RuntimeError: no compiler") in [(one.name, one.verdict) for one in found.tried]


def test_a_script_that_fails_is_one_clear_error() -> None:
    machine = Imagined()
    machine.broken = lambda options: "ValueError: no such column"
    with pytest.raises(UserCodeFailed, match="no such column"):
        tuned(machine)
    assert len(machine.ran) == 1


def test_a_model_that_fits_nowhere_is_one_clear_error() -> None:
    machine = Imagined(free=GIB)
    machine.memory = lambda options, micro: 2 * GIB
    with pytest.raises(UserCodeFailed, match="out of memory with a micro-batch of 1"):
        tuned(machine)
    assert len(machine.ran) < 8


def test_a_script_that_is_killed_at_once_is_one_clear_error() -> None:
    with pytest.raises(UserCodeFailed, match="before its first step"):
        TuningSearch(lambda changes: ScriptMeasurement(oom=True)).found()


def test_what_won_by_chance_loses_the_duel() -> None:
    """A machine that was fast once: the choice is measured again beside the script as it is."""
    machine = Imagined()
    times = {"n": 0}

    def speed(options: Options, micro: int) -> float:
        times["n"] += options.compile is True
        return 300.0 if options.compile is True and times["n"] == 1 else 90.0 if options.compile else 100.0

    machine.speed = speed
    found = tuned(machine)
    assert found.changes == {}
    assert [one.verdict for one in found.tried if one.name.endswith("again")] == ["measured"] * 2


def test_doubt_keeps_what_is_there() -> None:
    machine = Imagined()
    machine.speed = lambda options, micro: 110.0 if options.compile else 100.0
    assert tuned(machine).changes == {"compile": True}
    unsure = TuningSearch(lambda changes: replace(machine(changes), doubt=0.05))
    assert unsure.found().changes == {}


def test_time_that_is_up_ends_the_search() -> None:
    machine = Imagined()
    assert tuned(machine, budget_s=0.0).changes == {}
    assert machine.ran == [{}]
