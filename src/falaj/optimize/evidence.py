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

from falaj.core.sheet import FILE, to_json
from falaj.drift.records import FILE as PROFILE
from falaj.optimize import cpu
from falaj.optimize.carrying import carried
from falaj.optimize.records import Plan, Tried
from falaj.optimize.trial import Trial

EVIDENCE, CARD, MODEL = "optimize.json", "card.json", "model.onnx"
_PACKAGES = ("falaj", "numpy", "onnx", "onnxruntime", "onnxscript", "torch", "skl2onnx")
_PATHS = ("model", "out", "code", "data", "evaluate")


def write(trial: Trial, rows: Sequence[Tried], chosen: Tried, notes: Sequence[str]) -> None:
    """The folder of the chosen variant. The model comes last: a folder without one is no model."""
    out = Path(trial.plan.out)
    out.mkdir(parents=True, exist_ok=True)
    sheet = replace(trial.original.sheet, parameters={**trial.original.sheet.parameters, "optimized": chosen.name})
    (out / FILE).write_bytes(to_json(sheet))
    real = trial.plan.data or trial.plan.evaluate
    profile, why = carried(trial.plan.model, trial.files[chosen.name], trial.judge if real else None)
    if profile:
        (out / PROFILE).write_bytes(profile)
    notes = [*notes, why] if why else notes
    (out / CARD).write_text(json.dumps(_card(trial, chosen), indent=1), encoding="utf-8")
    (out / EVIDENCE).write_text(json.dumps(told(trial, rows, chosen, notes), indent=1), encoding="utf-8")
    shutil.copyfile(trial.files[chosen.name], out / "model.part")
    (out / "model.part").replace(out / MODEL)


def told(trial: Trial, rows: Sequence[Tried], chosen: Tried | None, notes: Sequence[str]) -> dict[str, Any]:
    """How it was found, so that anyone can find it again."""
    worst = trial.original.parity
    return {
        "plan": _plan(trial.plan),
        "made_from": dict(trial.plan.names),
        "kind": trial.original.kind,
        "measure": trial.kind,
        "rows": {"judged": len(trial.judge), "learnt": len(trial.learns) if trial.learns else 0},
        "parity": None if worst is None else {"worst": worst.error, "output": worst.output, "row": worst.row},
        "seven_bits": cpu.narrow(trial.flags, trial.plan.aim),
        "chosen": chosen.name if chosen else None,
        "notes": list(notes),
        "tried": [plain(one) for one in rows],
        "machine": machine(),
    }


def plain(one: Tried) -> dict[str, Any]:
    """As JSON can hold it: it has no infinity."""
    found = asdict(one)
    odd = [key for key, value in found.items() if isinstance(value, float) and not math.isfinite(value)]
    return {**found, **dict.fromkeys(odd)}


def machine() -> dict[str, Any]:
    """What it was measured on, as far as it matters."""
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    flags = sorted(cpu.flags() & cpu.TOLD)
    return {"cpu": cpu.named(), "flags": flags, "python": platform.python_version(), "versions": versions}


def _plan(plan: Plan) -> dict[str, Any]:
    return {key: value for key, value in asdict(plan).items() if key not in (*_PATHS, "names")}


def _card(trial: Trial, chosen: Tried) -> dict[str, Any]:
    plan = trial.plan
    metrics = {
        trial.kind: chosen.quality, "loss": chosen.loss, "speed": chosen.speed, "p50_us": chosen.p50_us,
        "rows_s": chosen.rows_s, "size_bytes": chosen.size_bytes, "memory_bytes": chosen.memory_bytes,
    }  # fmt: skip
    params = {"method": chosen.name, "for": plan.aim, "max_loss": plan.max_loss, "seed": plan.seed}
    return {"metrics": metrics, "params": params}
