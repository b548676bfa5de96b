"""Experiments: runs, their parameters, metrics, artefacts and traces. MLflow clients speak to it through `api`."""
