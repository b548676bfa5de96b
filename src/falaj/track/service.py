"""The desk of experiments: one class, written in the parts it inherits."""

from falaj.track.artifacts import Artifacts
from falaj.track.experiments import Experiments
from falaj.track.runs import Runs


class Track(Runs, Experiments, Artifacts):
    """Experiments and runs: parameters, metrics, artefacts."""
