"""Several models as one: features, a model, what comes after it. Each step is a folder of the ensemble's own files, so
that one version holds them all and one digest covers them; `features` is the step that looks up keys.

What a step takes and gives is held against its neighbours when the ensemble is loaded: names, types, shapes, cycles.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from falaj.asof.space_keys import KeyTexts
from falaj.core.errors import Invalid
from falaj.core.sheet import Sheet, Step, TensorSpec
from falaj.infer.features import Lookup, open_online
from falaj.infer.records import Arrays, ModelConfig, Runtime
from falaj.infer.runtimes import load
from falaj.infer.runtimes.specs import Specs, agreed, batches, meet
from falaj.infer.runtimes.verify import CODE, Files

FEATURES = "features"


class Stage:
    """One step and what runs it: (its own tensor, what the ensemble calls it), in the order of its runtime."""

    def __init__(self, step: Step, runtime: "Runtime | _Looking") -> None:
        self.name, self.runtime = step.model, runtime
        self.takes = _pairs(step, "inputs", runtime.inputs)
        self.gives = _pairs(step, "outputs", runtime.outputs)


class Ensemble:
    """The steps in an order in which each has what it needs."""

    platform = "ensemble"

    def __init__(self, stages: Sequence[Stage], sheet: Sheet) -> None:
        made = _produced(stages)
        self._stages = _ordered(stages, made)
        used = {name: spec for stage in stages for spec, name in stage.takes if name not in made}
        self.inputs = agreed(tuple(replace(spec, name=name) for name, spec in used.items()), sheet.inputs, "inputs")
        self.outputs = _outputs(stages, made, sheet)
        _check(stages, {one.name: one for one in self.inputs} | {name: spec for name, (_, spec) in made.items()})
        every = [stage.runtime for stage in stages]
        self.batches = batches(sheet, self.inputs, self.outputs) and all(getattr(one, "batches", True) for one in every)
        self.size_bytes = sum(one.size_bytes for one in every)
        self.parallel = all(one.parallel for one in every)
        self.isolated = any(one.isolated for one in every)
        self.joins = any(isinstance(one, _Looking) for one in every)

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """All outputs for one batch, one step after the other."""
        known = {spec.name: one for spec, one in zip(self.inputs, inputs, strict=True)}
        for stage in self._stages:
            found = stage.runtime.run([known[name] for _, name in stage.takes], parameters)
            known.update((name, one) for (_, name), one in zip(stage.gives, found, strict=True))
        return [known[spec.name] for spec in self.outputs]

    def replan(self, plan: Mapping[str, Any], keys: KeyTexts | None = None) -> None:
        """Read another version of the service from now on."""
        for stage in self._stages:
            if isinstance(stage.runtime, _Looking):
                stage.runtime.lookup.replan(plan, keys)

    def close(self) -> None:
        """Let go of every step."""
        for stage in self._stages:
            stage.runtime.close()


class _Looking:
    """The step that looks up features."""

    platform, size_bytes, parallel, isolated, batches = FEATURES, 0, True, False, True

    def __init__(self, lookup: Lookup, targets: Specs) -> None:
        self.lookup, self.inputs, self.outputs = lookup, lookup.inputs, targets

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """Features for keys."""
        return self.lookup.arrays(inputs)

    def close(self) -> None:
        self.lookup.close()


def opened(config: ModelConfig, sheet: Sheet, files: Files) -> Ensemble:
    """All steps loaded, and what they say of themselves held together."""
    if not sheet.steps:
        raise Invalid("the ensemble has no steps", 'in falaj.json: {"runtime": "ensemble", "steps": [{"model": "…"}]}')
    with contextlib.ExitStack() as held:
        stages: list[Stage] = []
        for step in sorted(sheet.steps, key=lambda one: one.model == FEATURES):  # which looks at what others take
            looks = step.model == FEATURES
            runtime = _looked_up(config, sheet, step, stages) if looks else _loaded(config, step.model, files)
            held.callback(runtime.close)
            stages.append(Stage(step, runtime))
        made = Ensemble(stages, sheet)
        held.pop_all()
        return made


def _loaded(config: ModelConfig, name: str, files: Files) -> Runtime:
    if not name or name.startswith(".") or "/" in name or not (files.folder / name).is_dir():
        raise Invalid(f"the ensemble has no step {name[:80]!r}", "each is a folder beside its falaj.json")
    code = {path: one for path, one in config.files.items() if path.startswith(CODE)}
    digests = {**files.below(name).digests, **code}
    folder = str(files.folder / name)
    return load(replace(config, name=name, folder=folder, files=digests, sheet=None, features=None))


def _looked_up(config: ModelConfig, sheet: Sheet, step: Step, stages: Sequence[Stage]) -> _Looking:
    """Features as those who take them want them: an FP64 can be given as an FP32, as it was when they were trained."""
    if config.features is None:
        raise Invalid("the ensemble looks up features, and there is no service", "deploy it with --features")
    wanted = {name: spec for stage in stages for spec, name in stage.takes}
    targets = [replace(wanted[name], name=own) for own, name in step.outputs.items() if name in wanted]
    if len(targets) < len(step.outputs) or not targets:
        raise Invalid("what the step `features` gives is not taken by a step", "name outputs that others take")
    online = open_online(config.features.online)
    try:
        order = sheet.parameters.get("features.order", "")
        return _Looking(Lookup(config.features, online, tuple(targets), order), tuple(targets))
    except Invalid:
        online.close()
        raise


def _pairs(step: Step, which: str, specs: Specs) -> list[tuple[TensorSpec, str]]:
    """Tensors of a step that are not named keep their own names."""
    named: Mapping[str, str] = getattr(step, which)
    odd = sorted(set(named) - {one.name for one in specs})
    if odd:
        said = ", ".join(one.name for one in specs)[:200]
        raise Invalid(f"the step {step.model[:80]!r} has no {odd[0][:80]!r} among its {which}", f"it has {said}")
    return [(one, named.get(one.name, one.name)) for one in specs]


def _produced(stages: Sequence[Stage]) -> dict[str, tuple[Stage, TensorSpec]]:
    made: dict[str, tuple[Stage, TensorSpec]] = {}
    for stage in stages:
        for spec, name in stage.gives:
            if name in made:
                raise Invalid(f"two steps give {name[:80]!r}", "give one of them another name")
            made[name] = stage, spec
    return made


def _ordered(stages: Sequence[Stage], made: Mapping[str, tuple[Stage, TensorSpec]]) -> list[Stage]:
    needs = {stage: {made[name][0] for _, name in stage.takes if name in made} for stage in stages}
    try:
        return list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        names = " -> ".join(stage.name for stage in error.args[1])
        raise Invalid(
            f"the steps wait for one another: {names[:200]}", "a step takes what earlier ones give"
        ) from error


def _outputs(stages: Sequence[Stage], made: Mapping[str, tuple[Stage, TensorSpec]], sheet: Sheet) -> Specs:
    """Those the sheet names; else what no step takes."""
    taken = {name for stage in stages for _, name in stage.takes}
    wanted = [one.name for one in sheet.outputs] or [name for name in made if name not in taken]
    lost = [name for name in wanted if name not in made]
    if lost or not wanted:
        raise Invalid(f"no step gives {(lost or ['anything'])[0][:80]!r}", f"they give {', '.join(made)}"[:300])
    return agreed(tuple(replace(made[name][1], name=name) for name in wanted), sheet.outputs, "outputs")


def _check(stages: Sequence[Stage], known: Mapping[str, TensorSpec]) -> None:
    for stage in stages:
        for spec, name in stage.takes:
            one = known[name]
            if not meet(one, spec):
                raise Invalid(
                    f"{name[:80]!r} is {one.datatype} {list(one.shape)}",
                    f"the step {stage.name[:80]} takes {spec.datatype} {list(spec.shape)}",
                )
