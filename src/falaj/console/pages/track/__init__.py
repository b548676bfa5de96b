"""Experiments: what was tried, what came of it, and how tries differ."""

from falaj.console.page import FileDownload, PageRoute, RouteResult
from falaj.console.page_view import PageView
from falaj.console.pages.track import compare_runs, experiment_list, outputs_and_traces, run_files, run_page, run_table
from falaj.core.ref import Ref

_RUN_REF = f"run:fraud/{0:032x}"


def render_track_resource_page(view: PageView) -> RouteResult:
    """The page of an experiment, a run, a logged model or a trace."""
    ref = Ref.parse(view.args["ref"])
    renderers = {
        "experiment": run_table.render_experiment_page,
        "output": outputs_and_traces.render_output_page,
        "trace": outputs_and_traces.render_trace_page,
    }
    return renderers.get(ref.kind, run_page.render_run_page)(view, ref)


def download_file(view: PageView) -> FileDownload:
    """A file of a run, to be saved; or a picture, to be shown."""
    return run_files.download_file(view, Ref.parse(view.args["ref"]))


ROUTES = (
    PageRoute("track", experiment_list.render_experiments_page, walk=("track",)),
    PageRoute("track/runs", run_table.render_all_runs_page, walk=("track/runs", "track/runs?where=metrics.loss")),
    PageRoute("track/grid", run_table.load_window, walk=("track/grid?experiment=experiment:fraud/scoring",)),
    PageRoute(
        "track/compare",
        compare_runs.render_compare_page,
        walk=(f"track/compare?runs=fraud~{0:032x}~{1:032x}~{5:032x}", f"track/compare?runs=fraud~{0:032x}"),
    ),
    PageRoute(
        "track/<ref>",
        render_track_resource_page,
        walk=(
            "track/experiment:fraud/scoring",
            "track/experiment:fraud/scoring?tab=shape",
            "track/experiment:fraud/scoring?tab=about",
            "track/experiment:fraud/scoring?tab=models",
            "track/experiment:fraud/scoring?tab=traces",
            f"track/{_RUN_REF}",
            f"track/{_RUN_REF}?tab=curves&smooth=0.6&x=time",
            f"track/{_RUN_REF}?tab=files&path=report.md",
            f"track/run:hostile/{0xBAD:032x}",
            f"track/run:hostile/{0xBAD:032x}?tab=files&path=notes/card.md",
        ),
    ),
    PageRoute("track/<ref>/file", download_file, walk=(f"track/{_RUN_REF}/file?path=report.md",)),
)
