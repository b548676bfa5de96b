"""The real MLflow client at work on models: autolog, logged models, the registry, loading back, traces."""

# ruff: noqa: E402, ICN001, PT018 - a user's script, not a test module

import json
import time
import warnings

warnings.simplefilter("ignore")

import mlflow
import mlflow.sklearn
import numpy
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from sklearn.linear_model import LogisticRegression

client = MlflowClient()
out: dict[str, object] = {}


def code_of(act) -> str:
    try:
        act()
    except MlflowException as error:
        return error.error_code
    return "none"


def message_of(act) -> str:
    try:
        act()
    except MlflowException as error:
        return str(error)
    return ""


X = numpy.array([[float(n), float(n % 3)] for n in range(40)])
y = numpy.array([int(n > 20) for n in range(40)])
mlflow.set_experiment("models")

# Autolog of scikit-learn: parameters, metrics, a model.
mlflow.sklearn.autolog(log_datasets=True)
with mlflow.start_run(run_name="auto") as auto:
    fitted = LogisticRegression(C=0.5).fit(X, y)
mlflow.sklearn.autolog(disable=True)
run = client.get_run(auto.info.run_id)
assert run.data.params["C"] == "0.5", run.data.params
assert 0.9 < run.data.metrics["training_accuracy_score"] <= 1, run.data.metrics
assert run.inputs.dataset_inputs, "the training data is an input"
assert len(run.outputs.model_outputs) == 1
auto_model = run.outputs.model_outputs[0].model_id
logged = client.get_logged_model(auto_model)
assert logged.source_run_id == auto.info.run_id and logged.status == "READY", logged
assert logged.metrics, "what was measured of a model is its own too"

# Logged models: made, tagged, found, loaded.
with mlflow.start_run(run_name="by hand") as hand:
    info = mlflow.sklearn.log_model(
        fitted,
        name="churn",
        params={"C": "0.5"},
        tags={"who": "amal"},
        input_example=X[:2],
        pip_requirements=["scikit-learn"],
    )
assert info.model_id.startswith("m-")
model = client.get_logged_model(info.model_id)
assert model.name == "churn" and model.params["C"] == "0.5" and model.tags["who"] == "amal"
client.set_logged_model_tags(info.model_id, {"more": "yes"})
client.delete_logged_model_tag(info.model_id, "who")
assert client.get_logged_model(info.model_id).tags.get("more") == "yes"
assert "who" not in client.get_logged_model(info.model_id).tags
experiment = hand.info.experiment_id
found = client.search_logged_models([experiment], filter_string="name = 'churn'")
assert [m.model_id for m in found] == [info.model_id]
everything = client.search_logged_models([experiment], order_by=[{"field_name": "creation_time", "ascending": False}])
assert [m.model_id for m in everything] == [info.model_id, auto_model]
assert list(mlflow.pyfunc.load_model(info.model_uri).predict(X)) == list(fitted.predict(X))
assert list(mlflow.sklearn.load_model(f"runs:/{hand.info.run_id}/churn").predict(X)) == list(fitted.predict(X))
assert "MLmodel" in {f.path for f in client.list_logged_model_artifacts(info.model_id)}

# The registry.
assert code_of(lambda: client.get_registered_model("scorer")) == "RESOURCE_DOES_NOT_EXIST"
client.create_registered_model("scorer", tags={"team": "risk"}, description="scores payments")
assert code_of(lambda: client.create_registered_model("scorer")) == "RESOURCE_ALREADY_EXISTS"
first = mlflow.register_model(info.model_uri, "scorer", tags={"try": "1"})
assert (first.version, first.status, first.current_stage) == ("1", "READY", "None"), first
second = mlflow.register_model(f"runs:/{auto.info.run_id}/model", "scorer")
assert second.version == "2"
with mlflow.start_run() as third_run:
    third_info = mlflow.sklearn.log_model(
        fitted, name="third", registered_model_name="scorer", pip_requirements=["scikit-learn"]
    )
assert int(third_info.registered_model_version) == 3
got = client.get_model_version("scorer", "1")
assert got.tags == {"try": "1"} and got.source == info.model_uri, got
client.update_model_version("scorer", "1", description="the first one")
client.set_model_version_tag("scorer", "1", "checked", "yes")
client.delete_model_version_tag("scorer", "1", "try")
got = client.get_model_version("scorer", "1")
assert got.description == "the first one" and got.tags == {"checked": "yes"}
client.update_registered_model("scorer", description="scores card payments")
client.set_registered_model_tag("scorer", "owner", "amal")
client.delete_registered_model_tag("scorer", "team")
registered = client.get_registered_model("scorer")
assert registered.description == "scores card payments" and registered.tags == {"owner": "amal"}
assert [v.version for v in registered.latest_versions] == ["3"]

# Aliases, and the words that are stages.
client.set_registered_model_alias("scorer", "champion", "1")
assert client.get_model_version_by_alias("scorer", "champion").version == "1"
client.set_registered_model_alias("scorer", "champion", "2")
assert client.get_registered_model("scorer").aliases == {"champion": "2"}
assert list(mlflow.pyfunc.load_model("models:/scorer@champion").predict(X)) == list(fitted.predict(X))
assert list(mlflow.pyfunc.load_model("models:/scorer/3").predict(X)) == list(fitted.predict(X))
client.delete_registered_model_alias("scorer", "champion")
client.delete_registered_model_alias("scorer", "champion")
assert code_of(lambda: client.get_model_version_by_alias("scorer", "champion")) == "RESOURCE_DOES_NOT_EXIST"
refused = message_of(lambda: client.transition_model_version_stage("scorer", "2", "Production"))
assert "PERMISSION_DENIED" in refused and "may run code" in refused, refused
refused = message_of(lambda: client.transition_model_version_stage("scorer", "1", "Production"))
assert "PERMISSION_DENIED" in refused and "waits for 1 more person" in refused, refused
refused = message_of(lambda: client.set_registered_model_alias("scorer", "production", "1"))
assert "PERMISSION_DENIED" in refused, refused
assert client.get_model_version("scorer", "1").current_stage == "None"
out["refused"] = refused

# Search, deletion, and what may not be a source.
assert [v.version for v in client.search_model_versions("name = 'scorer'")] == ["3", "2", "1"]
assert [v.version for v in client.search_model_versions(f"run_id = '{hand.info.run_id}'")] == ["1"]
client.create_registered_model("other")
assert {m.name for m in client.search_registered_models()} == {"scorer", "other"}
assert [m.name for m in client.search_registered_models("name LIKE 'sc%'")] == ["scorer"]
client.delete_model_version("scorer", "2")
assert code_of(lambda: client.get_model_version("scorer", "2")) == "RESOURCE_DOES_NOT_EXIST"
client.delete_registered_model("other")
assert code_of(lambda: client.get_registered_model("other")) == "RESOURCE_DOES_NOT_EXIST"
client.create_registered_model("other")
client.rename_registered_model("other", "renamed")
assert client.get_registered_model("renamed").name == "renamed"
assert code_of(lambda: client.get_registered_model("other")) == "RESOURCE_DOES_NOT_EXIST"
client.create_registered_model("copies")
copy = client.copy_model_version("models:/scorer/1", "copies")
assert (copy.name, copy.version, copy.run_id, copy.tags) == ("copies", "1", got.run_id, {"checked": "yes"}), copy
assert list(mlflow.sklearn.load_model("models:/copies/1").predict(X)) == list(fitted.predict(X))
# MLflow's own server makes a version each time, of the same files, too.
assert [client.copy_model_version("models:/scorer/1", "copies").version for _ in range(2)] == ["2", "3"]
assert client.create_model_version("copies", "models:/scorer/1").version == "4"
again = client.get_model_version("copies", "3")
assert (again.source, again.tags) == ("models:/scorer/1", {"checked": "yes"}), again
for nowhere in ("models:/nobody/1", "models:/scorer/99"):
    assert code_of(lambda s=nowhere: client.create_model_version("copies", s)) == "RESOURCE_DOES_NOT_EXIST", nowhere
for source in (
    "file:///etc/passwd",
    "/etc/passwd",
    "s3://bucket/x",
    "http://127.0.0.1/x",
    "mlflow-artifacts:/../../etc",
    "mlflow-artifacts://evil.example/1/2/artifacts",
    "runs:/../x",
    "models:/m-1/../../x",
    "dbfs:/x",
    "",
):
    assert code_of(lambda s=source: client.create_model_version("scorer", s)) in (
        "INVALID_PARAMETER_VALUE",
        "RESOURCE_DOES_NOT_EXIST",
    ), source
# Prompts are models to the client; none is begun.
refused = message_of(lambda: mlflow.genai.register_prompt("greeting", "hello {{ name }}"))
assert "INVALID_PARAMETER_VALUE" in refused and "prompts are not kept here" in refused, refused
client.delete_logged_model(info.model_id)
assert code_of(lambda: client.get_logged_model(info.model_id)) == "RESOURCE_DOES_NOT_EXIST"
# The version stands on its own: it is in the catalog.
assert list(mlflow.pyfunc.load_model("models:/scorer/1").predict(X)) == list(fitted.predict(X))


# Traces.
@mlflow.trace(name="outer call", attributes={"a": 1})
def outer(x: int) -> int:
    with mlflow.start_span("inner") as span:
        span.set_inputs({"x": x})
        return x + 1


assert outer(41) == 42
assert outer(1) == 2
mlflow.flush_trace_async_logging()
found = mlflow.search_traces(locations=[experiment], return_type="list")
assert len(found) == 2, found
trace = found[0]
assert {span.name for span in trace.data.spans} == {"outer call", "inner"}, trace.data.spans
assert trace.info.state == "OK" and trace.info.request_preview
client.set_trace_tag(trace.info.trace_id, "seen", "yes")
assert client.get_trace(trace.info.trace_id).info.tags["seen"] == "yes"
assert len(mlflow.search_traces(locations=[experiment], filter_string="tags.seen = 'yes'", return_type="list")) == 1
for asked in ("trace.name = 'outer call'", "trace.timestamp_ms > 0 AND metadata.mlflow.user LIKE '%'"):
    assert mlflow.search_traces(locations=[experiment], filter_string=asked, return_type="list"), asked
assert len(mlflow.search_traces(locations=[experiment], max_results=1, return_type="list")) == 1
client.delete_trace_tag(trace.info.trace_id, "seen")
feedback = mlflow.log_feedback(trace_id=trace.info.trace_id, name="right", value=True)
assert [a.name for a in client.get_trace(trace.info.trace_id).info.assessments] == ["right"]
mlflow.log_feedback(trace_id=trace.info.trace_id, name="score", value=0.75)
mlflow.log_expectation(trace_id=trace.info.trace_id, name="answer", value="forty two")
for asked, many in (
    ("feedback.right = 'true'", 1),
    ("feedback.right = 'false'", 0),
    ("feedback.score > 0.5 AND feedback.score <= 0.75", 1),
    ("feedback.score > 0.8", 0),
    ("expectation.answer LIKE 'forty%'", 1),
    ("feedback.answer IS NULL AND feedback.right IS NOT NULL", 1),
    ("trace.end_time_ms > 0 AND attributes.end_time < 99999999999999", 2),
    ("trace.client_request_id = 'nobody'", 0),
    ("trace.client_request_id IS NULL", 2),
):
    assert len(mlflow.search_traces(locations=[experiment], filter_string=asked, return_type="list")) == many, asked
# What spans hold is in files and not searched; the refusal names all that is.
refused = message_of(lambda: mlflow.search_traces(locations=[experiment], filter_string="span.name = 'inner'"))
for prefix in ("tags", "trace", "attributes", "metadata", "feedback", "expectation"):
    assert prefix in refused, refused
assert client.delete_traces(experiment, trace_ids=[trace.info.trace_id]) == 1
assert len(mlflow.search_traces(locations=[experiment], return_type="list")) == 1

# The workspace names a project.
mlflow.set_workspace("risk")
inside = client.create_experiment("scores")
assert client.get_experiment_by_name("scores").name == "scores"
client.create_registered_model("judge")
assert [m.name for m in client.search_registered_models("name = 'judge'")] == ["judge"]
mlflow.set_workspace(None)
assert client.get_experiment_by_name("risk/scores").experiment_id == inside
out |= {"experiment": experiment, "hand": hand.info.run_id, "model": auto_model, "at": time.time()}
print(json.dumps(out))
