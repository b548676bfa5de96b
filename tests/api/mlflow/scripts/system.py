"""The real MLflow client measures its machine beside a run. Prints the names of what arrived."""

import json
import time

import mlflow
from mlflow import MlflowClient

client = MlflowClient()
mlflow.set_experiment("system")
mlflow.set_system_metrics_sampling_interval(0.2)
mlflow.set_system_metrics_samples_before_logging(1)
key, until = "system/cpu_utilization_percentage", time.monotonic() + 60
with mlflow.start_run(log_system_metrics=True) as run:
    while len(client.get_metric_history(run.info.run_id, key)) < 3 and time.monotonic() < until:
        time.sleep(0.2)
points = client.get_metric_history(run.info.run_id, key)
assert [point.step for point in points] == list(range(len(points))), points
found = mlflow.search_runs(filter_string=f"metrics.`{key}` >= 0", search_all_experiments=True)
assert list(found["run_id"]) == [run.info.run_id], found
print(
    json.dumps(
        {"run": run.info.run_id, "points": len(points), "keys": list(client.get_run(run.info.run_id).data.metrics)}
    )
)
