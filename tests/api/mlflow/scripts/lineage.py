"""The real MLflow client names data of ours as its input, logs a model and registers it; in either order."""

# ruff: noqa: E402, ICN001 - a user's script, not a test module

import json
import os
import warnings

warnings.simplefilter("ignore")

import mlflow
import mlflow.sklearn
import numpy
import pandas
from mlflow import MlflowClient
from sklearn.linear_model import LogisticRegression

X = numpy.array([[float(n), float(n % 3)] for n in range(40)])
y = numpy.array([int(n > 20) for n in range(40)])
fitted = LogisticRegression().fit(X, y)
frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y})
used = mlflow.data.from_pandas(frame, source=f"https://falaj.example/{os.environ['DATASET']}", name="tx", targets="y")
mlflow.set_experiment("lineage")
out = {}


def log_model(form: str) -> str:
    made = mlflow.sklearn.log_model(
        fitted,
        name="model",
        serialization_format=form,
        input_example=frame[["a", "b"]][:2],
        pip_requirements=["scikit-learn==1.9.1", "numpy"],
    )
    return made.model_uri


with mlflow.start_run() as before:
    mlflow.log_input(used, context="training")
    address = log_model("skops")
mlflow.register_model(address, "lin-before")
with mlflow.start_run() as after:
    address = log_model("cloudpickle")
    mlflow.log_input(used, context="training")
mlflow.register_model(f"runs:/{after.info.run_id}/model", "lin-after")
client = MlflowClient()
assert [one.dataset.name for one in client.get_run(before.info.run_id).inputs.dataset_inputs] == ["tx"]
assert client.get_model_version("lin-before", "1").run_id == before.info.run_id
print(json.dumps({"before": before.info.run_id, "after": after.info.run_id, "model": address}))
