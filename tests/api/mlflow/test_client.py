"""The MLflow client of the current release against a server of ours, unchanged but for its address and token."""

from tests.api.mlflow.conftest import Client, Place


def test_experiments_runs_metrics_search_and_artefacts(client: Client) -> None:
    client("tracking.py")


def test_autolog_logged_models_registry_and_traces(place: Place, client: Client) -> None:
    client("models.py")
    catalog = place.replica.as_(place.tokens["amal"]).catalog
    named = {str(one.ref): one.tags for one in catalog.names("model").names}
    assert "model:main/greeting" not in named, "what was refused leaves nothing"
    assert ("model:main/renamed" in named, named["model:main/other"]["falaj.name"]) == (False, "renamed")
    assert catalog.about("model:main/renamed").tags["falaj.at"] == "model:main/other"


def test_what_the_client_measures_of_its_machine(place: Place, client: Client) -> None:
    found = client("system.py")
    assert {"system/cpu_utilization_percentage", "system/system_memory_usage_megabytes"} <= set(found["keys"])
    here = place.replica.as_(place.tokens["amal"])
    (run,) = (one for one in here.track.list().runs if one.id == found["run"])
    curve = here.track.history(run.ref, "system/cpu_utilization_percentage")
    assert curve.total >= found["points"] >= 3
