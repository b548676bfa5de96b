"""How runs differ. Pure."""

import math
from collections.abc import Callable

from falaj.core.ref import Ref
from falaj.track.records import Comparison, Difference, Run


def compared(runs: tuple[Run, ...]) -> Comparison:
    """The parameters and metrics in which runs differ; of each metric, who has the lowest and who the highest value."""
    params, same_params = _differing(runs, "param", lambda run: dict(run.params))
    metrics, same_metrics = _differing(
        runs, "metric", lambda run: {key: f"{metric.number:.6g}" for key, metric in run.metrics.items()}
    )
    refs = tuple(run.ref for run in runs)
    marked = [Difference("metric", one.key, one.values, *_ends(runs, one.key)) for one in metrics]
    return Comparison(refs, tuple(run.title for run in runs), (*params, *marked), same_params, same_metrics)


def _differing(runs: tuple[Run, ...], kind: str, read: Callable[[Run], dict[str, str]]) -> tuple[list[Difference], int]:
    tables = [read(run) for run in runs]
    found: list[Difference] = []
    same = 0
    for key in sorted({key for table in tables for key in table}):
        values = tuple(table.get(key, "") for table in tables)
        if len(set(values)) == 1 and all(key in table for table in tables):
            same += 1
        else:
            found.append(Difference(kind, key, values))
    return found, same


def _ends(runs: tuple[Run, ...], key: str) -> tuple[Ref | None, Ref | None]:
    known = [(run.metrics[key].number, run.ref) for run in runs if key in run.metrics]
    known = [(number, ref) for number, ref in known if not math.isnan(number)]
    if len({number for number, _ in known}) < 2:
        return None, None
    return min(known)[1], max(known)[1]
