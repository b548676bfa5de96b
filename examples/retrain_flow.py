"""A flow that retrains: newest data, a challenger, a fair fight with the champion, and into service if it won.

    falaj flows save examples/retrain_flow.py
    falaj flows run flow:fraud/retrain --params model=model:fraud/scorer@v1
    falaj monitor change endpoint:fraud/score --more retrain=flow:fraud/retrain      # a verdict on drift starts it

The dataset is a table of numbers (Parquet, CSV or npz) with the column `target`, 0 or 1; the newest rows come last.
"""

from pathlib import Path

import numpy as np

from falaj import flow, step
from falaj.core.flow_definition import Dataset, Model

SMALL = {"cpus": 0.5, "memory": "512MiB", "retries": 1, "timeout": "10m"}


@step(outputs={"model": "model:fraud/scorer"}, **SMALL)
def train(data: Dataset, champion: Model, target: str) -> dict:
    """Fit the challenger on the older rows, in the champion's shape, with the profile it will be watched by."""
    from sklearn.linear_model import LogisticRegression

    from falaj.drift.profiles import build_profile, encode_profile

    rows, y = read(data, target, champion)
    old = slice(0, int(len(y) * 0.8))
    mean, deviation = rows[old].mean(axis=0), rows[old].std(axis=0) + 1e-9
    fitted = LogisticRegression(max_iter=500).fit((rows[old] - mean) / deviation, y[old])
    weights = (fitted.coef_[0] / deviation).astype(np.float32)
    bias = np.float32(fitted.intercept_[0] - (fitted.coef_[0] * mean / deviation).sum())
    folder = step.output("model")
    names, output = write(folder / "model.onnx", weights, bias, champion)
    said = 1 / (1 + np.exp(-(rows @ weights + bias)))
    axes = names if len(names) > 1 else [f"{names[0]}[{at}]" for at in range(rows.shape[1])]
    taken = dict(zip(axes, rows.T, strict=True))
    profile = build_profile(taken, predictions={output: said}, label=y, label_name=target)
    (folder / "falaj.profile.json").write_bytes(encode_profile(profile))
    return {"rows": len(y), "accuracy": float(((said > 0.5) == y)[old.stop :].mean())}


@step(**SMALL)
def validate(data: Dataset, champion: Model, challenger: Model, target: str, canary: float) -> dict:
    """Both models on the newest rows, which neither was fitted on: is the challenger shown to be no worse?"""
    from falaj.drift.paired_test import judge_challenger

    rows, y = read(data, target, champion)
    newest = slice(int(len(y) * 0.8), None)
    found = judge_challenger(answers(champion, rows[newest]), answers(challenger, rows[newest]), y[newest], margin=0.01)
    trial = {"kind": "canary", "share": float(canary), "judge": True} if float(canary) else None
    return {"better": found.passes, "why": found.why, "trial": trial}


@flow("fraud/retrain", params={"data": "dataset:fraud/transactions", "model": "model:fraud/scorer"})
def retrain(data, model, endpoint="endpoint:fraud/score", cause="", since=0.0, target="target", canary=0.2):
    """Train on the newest data, validate against the model in service, and deploy what is better."""
    del cause, since  # they are kept with the run, and tell whoever looks at it why it ran
    challenger = train(data, model, target)
    judged = validate(data, model, challenger["model"], target, canary)
    with flow.when(judged["better"]):
        plan = {"trial": judged["trial"], "message": judged["why"]}
        flow.verb("serve.add", endpoint=endpoint, model=challenger["model"], plan=plan)


def read(data: Path, target: str, champion: Path):
    """A matrix with its columns as the champion takes them, and what is to be said of each row."""
    from falaj.train.estimators import read_rows

    found = read_rows(data, target)
    names = [one.name for one in opened(champion).get_inputs()]
    order = [found.columns.index(name) for name in names] if set(names) <= set(found.columns) else slice(None)
    return np.asarray(found.x, np.float32)[:, order], np.asarray(found.y, np.int64)


def opened(model: Path):
    """A model's session."""
    import onnxruntime

    return onnxruntime.InferenceSession(next(model.rglob("*.onnx")))


def answers(model: Path, rows: np.ndarray) -> np.ndarray:
    """The scores of a model of one matrix, or of one input for each column."""
    session = opened(model)
    names = [one.name for one in session.get_inputs()]
    given = {names[0]: rows} if len(names) == 1 else {name: rows[:, at] for at, name in enumerate(names)}
    shaped = {one.name: given[one.name].reshape(-1, *_tail(one)) for one in session.get_inputs()}
    return np.asarray(session.run(None, shaped)[0]).reshape(len(rows), -1)[:, 0]


def write(file: Path, weights: np.ndarray, bias: float, champion: Path):
    """The challenger as ONNX, with the champion's inputs and output, so that callers notice nothing."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    known = opened(champion)
    inputs, output = known.get_inputs(), known.get_outputs()[0]
    names = [one.name for one in inputs]
    taken = [helper.make_tensor_value_info(one.name, TensorProto.FLOAT, ["rows", *_tail(one)]) for one in inputs]
    given = helper.make_tensor_value_info(output.name, TensorProto.FLOAT, ["rows", *_tail(output)])
    tail = np.array([-1, *_tail(output)], np.int64)
    kept = [
        numpy_helper.from_array(np.array([-1, 1], np.int64), "one"),
        numpy_helper.from_array(np.array([-1, len(weights) // len(names)], np.int64), "wide"),
        numpy_helper.from_array(weights.reshape(-1, 1), "w"),
        numpy_helper.from_array(np.array([bias], np.float32), "b"),
        numpy_helper.from_array(tail, "tail"),
    ]
    nodes = [helper.make_node("Reshape", [name, "wide"], [f"{name}_"]) for name in names]
    nodes += [
        helper.make_node("Concat", [f"{name}_" for name in names], ["all"], axis=1),
        helper.make_node("Gemm", ["all", "w", "b"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["score"]),
        helper.make_node("Reshape", ["score", "tail"], [output.name]),
    ]
    graph = helper.make_graph(nodes, "scorer", taken, [given], kept)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, file)
    return names, output.name


def _tail(one) -> list[int]:
    """The shape behind the rows."""
    return [size for size in one.shape[1:] if isinstance(size, int)]
