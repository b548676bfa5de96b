"""How runs differ. Pure."""

import math
from collections.abc import Callable

from falaj.core.ref import Ref
from falaj.track.records import Run, RunComparison, RunDifference


def compare_runs(runs: tuple[Run, ...]) -> RunComparison:
    """The parameters and metrics in which runs differ; of each metric, who has the lowest and who the highest value."""
    params, same_params = _find_differences(runs, "param", lambda run: dict(run.params))
    metrics, same_metrics = _find_differences(
        runs, "metric", lambda run: {key: f"{metric.number:.6g}" for key, metric in run.metrics.items()}
    )
    refs = tuple(run.ref for run in runs)
    marked_metrics = [
        RunDifference("metric", difference.key, difference.values, *_lowest_and_highest(runs, difference.key))
        for difference in metrics
    ]
    return RunComparison(refs, tuple(run.title for run in runs), (*params, *marked_metrics), same_params, same_metrics)


def _find_differences(
    runs: tuple[Run, ...], kind: str, read_values: Callable[[Run], dict[str, str]]
) -> tuple[list[RunDifference], int]:
    tables = [read_values(run) for run in runs]
    differences: list[RunDifference] = []
    same_count = 0
    for key in sorted({key for table in tables for key in table}):
        values = tuple(table.get(key, "") for table in tables)
        if len(set(values)) == 1 and all(key in table for table in tables):
            same_count += 1
        else:
            differences.append(RunDifference(kind, key, values))
    return differences, same_count


def _lowest_and_highest(runs: tuple[Run, ...], key: str) -> tuple[Ref | None, Ref | None]:
    known_values = [(run.metrics[key].number, run.ref) for run in runs if key in run.metrics]
    known_values = [(number, ref) for number, ref in known_values if not math.isnan(number)]
    if len({number for number, _ in known_values}) < 2:
        return None, None
    return min(known_values)[1], max(known_values)[1]
