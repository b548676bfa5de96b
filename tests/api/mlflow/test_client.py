"""The MLflow client of the current release against a server of ours, unchanged but for its address and token."""

from tests.api.mlflow.conftest import Client


def test_experiments_runs_metrics_search_and_artefacts(client: Client) -> None:
    client("tracking.py")


def test_autolog_logged_models_registry_and_traces(client: Client) -> None:
    client("models.py")
