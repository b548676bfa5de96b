"""Experiments: what was tried, what came of it, and how tries differ."""

from falaj.console.page import File, Made, Route
from falaj.console.pages.track import compare, experiments, files, run, runs, things
from falaj.console.view import View
from falaj.core.ref import Ref

_RUN = f"run:fraud/{0:032x}"


def thing(view: View) -> Made:
    """The page of an experiment, a run, a logged model or a trace."""
    ref = Ref.parse(view.args["ref"])
    pages = {"experiment": runs.of_experiment, "output": things.output, "trace": things.trace}
    return pages.get(ref.kind, run.run)(view, ref)


def file(view: View) -> File:
    """A file of a run, to be saved; or a picture, to be shown."""
    return files.file(view, Ref.parse(view.args["ref"]))


ROUTES = (
    Route("track", experiments.experiments, walk=("track",)),
    Route("track/runs", runs.of_all, walk=("track/runs", "track/runs?where=metrics.loss")),
    Route("track/grid", runs.window, walk=("track/grid?experiment=experiment:fraud/scoring",)),
    Route("track/compare", compare.compare, walk=(
        f"track/compare?runs=fraud~{0:032x}~{1:032x}~{5:032x}", f"track/compare?runs=fraud~{0:032x}")),
    Route("track/<ref>", thing, walk=(
        "track/experiment:fraud/scoring", "track/experiment:fraud/scoring?tab=shape",
        "track/experiment:fraud/scoring?tab=about", "track/experiment:fraud/scoring?tab=models",
        "track/experiment:fraud/scoring?tab=traces",
        f"track/{_RUN}", f"track/{_RUN}?tab=curves&smooth=0.6&x=time", f"track/{_RUN}?tab=files&path=report.md",
        f"track/run:hostile/{0xBAD:032x}", f"track/run:hostile/{0xBAD:032x}?tab=files&path=notes/card.md",
    )),
    Route("track/<ref>/file", file, walk=(f"track/{_RUN}/file?path=report.md",)),
)  # fmt: skip
