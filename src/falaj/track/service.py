"""The desk of experiments: one class, written in the parts it inherits."""

from falaj.track.artifacts import ArtifactOperations
from falaj.track.experiments import ExperimentOperations
from falaj.track.runs import RunOperations


class TrackService(RunOperations, ExperimentOperations, ArtifactOperations):
    """Experiments and runs: parameters, metrics, artefacts."""
