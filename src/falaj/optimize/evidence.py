"""What is written beside the chosen model: its sheet, its card, and how it was found."""

import contextlib
import json
import math
import platform
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from falaj.core.model_manifest import MANIFEST_FILE, encode_manifest
from falaj.drift.records import PROFILE_FILE as PROFILE
from falaj.optimize import cpu_features
from falaj.optimize.child_profile import build_child_profile
from falaj.optimize.optimization_trial import OptimizationTrial
from falaj.optimize.records import OptimizePlan, VariantResult

EVIDENCE_FILE, CARD_FILE, MODEL_FILE = "optimize.json", "card.json", "model.onnx"
_PACKAGES = ("falaj", "numpy", "onnx", "onnxruntime", "onnxscript", "torch", "skl2onnx")
_PATH_FIELDS = ("model", "out", "code", "data", "evaluate")


def write_chosen(
    trial: OptimizationTrial, variants: Sequence[VariantResult], chosen: VariantResult, notes: Sequence[str]
) -> None:
    """The folder of the chosen variant. The model comes last: a folder without one is no model."""
    out = Path(trial.plan.out)
    out.mkdir(parents=True, exist_ok=True)
    manifest = replace(trial.original.sheet, parameters={**trial.original.sheet.parameters, "optimized": chosen.name})
    (out / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    uses_data = trial.plan.data or trial.plan.evaluate
    profile, missing_reason = build_child_profile(
        trial.plan.model, trial.files[chosen.name], trial.judge if uses_data else None
    )
    if profile:
        (out / PROFILE).write_bytes(profile)
    notes = [*notes, missing_reason] if missing_reason else notes
    (out / CARD_FILE).write_text(json.dumps(_build_card(trial, chosen), indent=1), encoding="utf-8")
    (out / EVIDENCE_FILE).write_text(
        json.dumps(build_evidence(trial, variants, chosen, notes), indent=1), encoding="utf-8"
    )
    shutil.copyfile(trial.files[chosen.name], out / "model.part")
    (out / "model.part").replace(out / MODEL_FILE)


def build_evidence(
    trial: OptimizationTrial, variants: Sequence[VariantResult], chosen: VariantResult | None, notes: Sequence[str]
) -> dict[str, Any]:
    """How it was found, so that anyone can find it again."""
    parity = trial.original.parity
    return {
        "plan": _list_plan_settings(trial.plan),
        "made_from": dict(trial.plan.names),
        "kind": trial.original.kind,
        "measure": trial.kind,
        "rows": {"judged": len(trial.judge), "learnt": len(trial.learns) if trial.learns else 0},
        "parity": None if parity is None else {"worst": parity.error, "output": parity.output, "row": parity.row},
        "seven_bits": cpu_features.needs_seven_bits(trial.flags, trial.plan.aim),
        "chosen": chosen.name if chosen else None,
        "notes": list(notes),
        "tried": [to_json_values(variant) for variant in variants],
        "machine": describe_machine(),
    }


def to_json_values(variant: VariantResult) -> dict[str, Any]:
    """As JSON can hold it: it has no infinity."""
    values = asdict(variant)
    non_finite = [key for key, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
    return {**values, **dict.fromkeys(non_finite)}


def describe_machine() -> dict[str, Any]:
    """What it was measured on, as far as it matters."""
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    flags = sorted(cpu_features.read_cpu_flags() & cpu_features.REPORTED_FLAGS)
    return {
        "cpu": cpu_features.read_cpu_name(),
        "flags": flags,
        "python": platform.python_version(),
        "versions": versions,
    }


def _list_plan_settings(plan: OptimizePlan) -> dict[str, Any]:
    return {key: value for key, value in asdict(plan).items() if key not in (*_PATH_FIELDS, "names")}


def _build_card(trial: OptimizationTrial, chosen: VariantResult) -> dict[str, Any]:
    plan = trial.plan
    metrics = {
        trial.kind: chosen.quality, "loss": chosen.loss, "speed": chosen.speed, "p50_us": chosen.p50_us,
        "rows_s": chosen.rows_s, "size_bytes": chosen.size_bytes, "memory_bytes": chosen.memory_bytes,
    }  # fmt: skip
    params = {"method": chosen.name, "for": plan.aim, "max_loss": plan.max_loss, "seed": plan.seed}
    return {"metrics": metrics, "params": params}
