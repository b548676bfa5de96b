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
from falaj.core.model_manifest import EnsembleStep, ModelManifest, TensorSpec
from falaj.infer.feature_lookup import FeatureLookup, open_online_store
from falaj.infer.records import Arrays, ModelConfig, ModelRuntime
from falaj.infer.runtimes import load_runtime
from falaj.infer.runtimes.model_files import CODE_PREFIX, ModelFiles
from falaj.infer.runtimes.tensor_specs import TensorSpecs, are_compatible, can_batch, reconcile_specs

FEATURES_STEP = "features"


class EnsembleStage:
    """One step and what runs it: (its own tensor, what the ensemble calls it), in the order of its runtime."""

    def __init__(self, step: EnsembleStep, runtime: "ModelRuntime | _LookupRuntime") -> None:
        self.name, self.runtime = step.model, runtime
        self.takes = _pair_tensors(step, "inputs", runtime.inputs)
        self.gives = _pair_tensors(step, "outputs", runtime.outputs)


class EnsembleRuntime:
    """The steps in an order in which each has what it needs."""

    platform = "ensemble"

    def __init__(self, stages: Sequence[EnsembleStage], manifest: ModelManifest) -> None:
        producers = _find_producers(stages)
        self._stages = _order_stages(stages, producers)
        unproduced = {name: spec for stage in stages for spec, name in stage.takes if name not in producers}
        self.inputs = reconcile_specs(
            tuple(replace(spec, name=name) for name, spec in unproduced.items()), manifest.inputs, "inputs"
        )
        self.outputs = _select_outputs(stages, producers, manifest)
        _check_tensors(
            stages, {item.name: item for item in self.inputs} | {name: spec for name, (_, spec) in producers.items()}
        )
        stage_runtimes = [stage.runtime for stage in stages]
        self.batches = can_batch(manifest, self.inputs, self.outputs) and all(
            getattr(item, "batches", True) for item in stage_runtimes
        )
        self.size_bytes = sum(item.size_bytes for item in stage_runtimes)
        self.parallel = all(item.parallel for item in stage_runtimes)
        self.isolated = any(item.isolated for item in stage_runtimes)
        self.joins = any(isinstance(item, _LookupRuntime) for item in stage_runtimes)

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """All outputs for one batch, one step after the other."""
        values = {spec.name: array for spec, array in zip(self.inputs, inputs, strict=True)}
        for stage in self._stages:
            outputs = stage.runtime.run([values[name] for _, name in stage.takes], parameters)
            values.update((name, array) for (_, name), array in zip(stage.gives, outputs, strict=True))
        return [values[spec.name] for spec in self.outputs]

    def replan(self, plan: Mapping[str, Any], keys: KeyTexts | None = None) -> None:
        """Read another version of the service from now on."""
        for stage in self._stages:
            if isinstance(stage.runtime, _LookupRuntime):
                stage.runtime.lookup.replan(plan, keys)

    def close(self) -> None:
        """Let go of every step."""
        for stage in self._stages:
            stage.runtime.close()


class _LookupRuntime:
    """The step that looks up features."""

    platform, size_bytes, parallel, isolated, batches = FEATURES_STEP, 0, True, False, True

    def __init__(self, lookup: FeatureLookup, targets: TensorSpecs) -> None:
        self.lookup, self.inputs, self.outputs = lookup, lookup.inputs, targets

    def run(self, inputs: Arrays, parameters: Mapping[str, Any]) -> Arrays:
        """Features for keys."""
        return self.lookup.arrays(inputs)

    def close(self) -> None:
        self.lookup.close()


def open_runtime(config: ModelConfig, manifest: ModelManifest, files: ModelFiles) -> EnsembleRuntime:
    """All steps loaded, and what they say of themselves held together."""
    if not manifest.steps:
        raise Invalid("the ensemble has no steps", 'in falaj.json: {"runtime": "ensemble", "steps": [{"model": "…"}]}')
    with contextlib.ExitStack() as exit_stack:
        stages: list[EnsembleStage] = []
        for step in sorted(
            manifest.steps, key=lambda candidate: candidate.model == FEATURES_STEP
        ):  # which looks at what others take
            is_lookup = step.model == FEATURES_STEP
            runtime = (
                _open_lookup(config, manifest, step, stages) if is_lookup else _load_step(config, step.model, files)
            )
            exit_stack.callback(runtime.close)
            stages.append(EnsembleStage(step, runtime))
        ensemble = EnsembleRuntime(stages, manifest)
        exit_stack.pop_all()
        return ensemble


def _load_step(config: ModelConfig, name: str, files: ModelFiles) -> ModelRuntime:
    if not name or name.startswith(".") or "/" in name or not (files.folder / name).is_dir():
        raise Invalid(f"the ensemble has no step {name[:80]!r}", "each is a folder beside its falaj.json")
    code = {path: digest for path, digest in config.files.items() if path.startswith(CODE_PREFIX)}
    digests = {**files.below(name).digests, **code}
    folder = str(files.folder / name)
    return load_runtime(replace(config, name=name, folder=folder, files=digests, sheet=None, features=None))


def _open_lookup(
    config: ModelConfig, manifest: ModelManifest, step: EnsembleStep, stages: Sequence[EnsembleStage]
) -> _LookupRuntime:
    """Features as those who take them want them: an FP64 can be given as an FP32, as it was when they were trained."""
    if config.features is None:
        raise Invalid("the ensemble looks up features, and there is no service", "deploy it with --features")
    taken_specs = {name: spec for stage in stages for spec, name in stage.takes}
    targets = [
        replace(taken_specs[name], name=step_output)
        for step_output, name in step.outputs.items()
        if name in taken_specs
    ]
    if len(targets) < len(step.outputs) or not targets:
        raise Invalid("what the step `features` gives is not taken by a step", "name outputs that others take")
    online = open_online_store(config.features.online)
    try:
        feature_order = manifest.parameters.get("features.order", "")
        return _LookupRuntime(FeatureLookup(config.features, online, tuple(targets), feature_order), tuple(targets))
    except Invalid:
        online.close()
        raise


def _pair_tensors(step: EnsembleStep, direction: str, specs: TensorSpecs) -> list[tuple[TensorSpec, str]]:
    """Tensors of a step that are not named keep their own names."""
    renamed_tensors: Mapping[str, str] = getattr(step, direction)
    unknown_names = sorted(set(renamed_tensors) - {spec.name for spec in specs})
    if unknown_names:
        known_names = ", ".join(spec.name for spec in specs)[:200]
        raise Invalid(
            f"the step {step.model[:80]!r} has no {unknown_names[0][:80]!r} among its {direction}",
            f"it has {known_names}",
        )
    return [(spec, renamed_tensors.get(spec.name, spec.name)) for spec in specs]


def _find_producers(stages: Sequence[EnsembleStage]) -> dict[str, tuple[EnsembleStage, TensorSpec]]:
    producers: dict[str, tuple[EnsembleStage, TensorSpec]] = {}
    for stage in stages:
        for spec, name in stage.gives:
            if name in producers:
                raise Invalid(f"two steps give {name[:80]!r}", "give one of them another name")
            producers[name] = stage, spec
    return producers


def _order_stages(
    stages: Sequence[EnsembleStage], producers: Mapping[str, tuple[EnsembleStage, TensorSpec]]
) -> list[EnsembleStage]:
    dependencies = {stage: {producers[name][0] for _, name in stage.takes if name in producers} for stage in stages}
    try:
        return list(TopologicalSorter(dependencies).static_order())
    except CycleError as error:
        names = " -> ".join(stage.name for stage in error.args[1])
        raise Invalid(
            f"the steps wait for one another: {names[:200]}", "a step takes what earlier ones give"
        ) from error


def _select_outputs(
    stages: Sequence[EnsembleStage], producers: Mapping[str, tuple[EnsembleStage, TensorSpec]], manifest: ModelManifest
) -> TensorSpecs:
    """Those the sheet names; else what no step takes."""
    taken_names = {name for stage in stages for _, name in stage.takes}
    output_names = [spec.name for spec in manifest.outputs] or [name for name in producers if name not in taken_names]
    missing_names = [name for name in output_names if name not in producers]
    if missing_names or not output_names:
        raise Invalid(
            f"no step gives {(missing_names or ['anything'])[0][:80]!r}", f"they give {', '.join(producers)}"[:300]
        )
    return reconcile_specs(
        tuple(replace(producers[name][1], name=name) for name in output_names), manifest.outputs, "outputs"
    )


def _check_tensors(stages: Sequence[EnsembleStage], specs_by_name: Mapping[str, TensorSpec]) -> None:
    for stage in stages:
        for spec, name in stage.takes:
            produced = specs_by_name[name]
            if not are_compatible(produced, spec):
                raise Invalid(
                    f"{name[:80]!r} is {produced.datatype} {list(produced.shape)}",
                    f"the step {stage.name[:80]} takes {spec.datatype} {list(spec.shape)}",
                )
