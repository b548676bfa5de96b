"""Optimising: a CNN of real digits and an encoder of five million parameters, every method, on this CPU.

    make bench NAME=optimize
    python bench/optimize.py cnn      one part: cnn, encoder

Speed is against fp32 in ONNX Runtime, one thread, CPU time, interleaved rounds; the table has it for one row alone and
for the best batch, and the bars hold for their geometric mean and for one row alone. A table for people, then one last
line of JSON with every bar.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from bars import bar, told  # noqa: E402
from optimize_models import Digits, Encoder  # noqa: E402
from scratch import folder  # noqa: E402

from falaj.core.model_manifest import ModelManifest, TensorSpec, encode_manifest  # noqa: E402
from falaj.optimize.dataset_rows import DatasetRows  # noqa: E402
from falaj.optimize.module_training import LearningPlan, train_module  # noqa: E402
from falaj.train.weights import write_weights  # noqa: E402

Rates = dict[str, dict[str, Any]]


def cnn() -> None:
    """Digits: 1,437 to learn from, 360 held out, as scikit-learn has them."""
    import torch
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    order = np.random.default_rng(0).permutation(len(images))
    held, learnt = order[:360], order[360:]
    torch.manual_seed(0)
    rows = DatasetRows((images[learnt],), labels[learnt].astype(np.int64))
    module = train_module(Digits(), rows, LearningPlan(epochs=20, rate=2e-3, seed=0))
    with folder() as place:
        _saved(place, module, "optimize_models:Digits", TensorSpec("image", "FP32", (-1, 1, 8, 8)))
        for name, which in (("data", learnt), ("evaluate", held)):
            np.savez(place / f"{name}.npz", image=images[which], label=labels[which].astype(np.int64))
        found = _optimised(place, {"target": "label", "epochs": 45, "max_loss": 0.005})
    base = found["export"]
    student = found["distil"]
    bar("cnn_student_speed", _times(base, student), ">=", 3.0)
    bar("cnn_student_speed_one_row", base["cpu_us"] / student["cpu_us"], ">=", 3.0)
    bar("cnn_student_accuracy_delta", round(100 * (student["quality"] - base["quality"]), 3), ">=", 0.0)


def encoder() -> None:
    """A made-up task, half learnt: which eighth of the words is seen most; agreement on 2,048 random inputs."""
    import torch

    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, 1024, (2048, 32))
    counts = np.stack([(tokens % 8 == one).sum(1) for one in range(8)], axis=1)
    rows = DatasetRows((tokens,), counts.argmax(1).astype(np.int64))
    module = train_module(Encoder(), rows, LearningPlan(epochs=2, rate=1e-3, seed=0))
    with folder() as place:
        _saved(place, module, "optimize_models:Encoder", TensorSpec("tokens", "INT64", (-1, 32)))
        np.savez(place / "data.npz", tokens=tokens[:512])
        np.savez(place / "evaluate.npz", tokens=draw.integers(0, 1024, (2048, 32)))
        methods = ["fuse", "int8-dynamic", "int8-static", "prune"]
        found = _optimised(place, {"methods": methods, "epochs": 3, "max_loss": 0.01})
    int8 = found["int8-dynamic"]
    bar("encoder_int8_speed", _times(found["export"], int8), ">=", 1.6)
    bar("encoder_int8_speed_one_row", found["export"]["cpu_us"] / int8["cpu_us"], ">=", 1.6)
    bar("encoder_int8_agreement", round(100 * int8["quality"], 2), ">=", 99.0)


def main() -> None:
    """The parts that were named, or both."""
    told("optimize", [cnn, encoder])


def _saved(place: Path, module: Any, code: str, spec: TensorSpec) -> None:
    (place / "model").mkdir()
    write_weights(module, place / "model" / "model.safetensors")
    (place / "model" / "falaj.json").write_bytes(
        encode_manifest(ModelManifest(runtime="torch", code=code, inputs=(spec,)))
    )


def _optimised(place: Path, more: dict[str, Any]) -> Rates:
    """What the command says, variant by variant, as a table too."""
    plan = {
        "model": str(place / "model"), "out": str(place / "out"), "code": str(HERE), "data": str(place / "data.npz"),
        "evaluate": str(place / "evaluate.npz"), **more,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "falaj.optimize", json.dumps(plan)], stdout=subprocess.PIPE, text=True, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if wrong := [line["error"] for line in lines if "error" in line]:
        raise SystemExit(str(wrong))
    found: Rates = {line["tried"]["name"]: line["tried"] for line in lines if "tried" in line}
    ended = lines[-1]["ended"]
    print(
        f"  {'variant':22} {'MiB':>6} {'b1 us':>8} {'b1':>6} {'best':>6} {ended['measure']:>9} {'memory':>8}  verdict"
    )
    for name, one in found.items():
        base, chosen = found["export"], " <- chosen" if name == ended["chosen"] else ""
        if not one["speed"]:
            print(f"  {name:22} {one['verdict']}: {one['note']}")
            continue
        print(
            f"  {name:22} {one['size_bytes'] / 2**20:6.2f} {one['cpu_us']:8.0f} {base['cpu_us'] / one['cpu_us']:5.2f}x "
            f"{base['row_cpu_us'] / one['row_cpu_us']:5.2f}x {100 * one['quality']:9.2f} "
            f"{one['memory_bytes'] / 2**20:6.1f} M  {one['verdict']}{chosen}",
            flush=True,
        )
    return found


def _times(base: dict[str, Any], other: dict[str, Any]) -> float:
    """How many times as fast: the geometric mean of one row alone and the best batch, as the optimiser ranks them."""
    alone, together = (base[name] / other[name] for name in ("cpu_us", "row_cpu_us"))
    return float(np.sqrt(alone * together))


if __name__ == "__main__":
    main()
