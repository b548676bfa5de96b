"""Curves in the terminal."""

import math
from typing import Any

import pytest

from falaj.core.errors import Invalid, NotFound
from falaj.core.ref import Ref
from falaj.track.records import Metric
from falaj.track.text_charts import format_sparkline, plot_curves
from tests.town import refusal


def test_a_line_rises_from_left_to_right() -> None:
    text = plot_curves([("up", [(float(n), float(n)) for n in range(100)])], 20, 4)
    lines = text.splitlines()
    assert lines[0].startswith("99 ┤")
    assert lines[3].strip().startswith("0 ┤")
    assert lines[0].rstrip().endswith("⡀") or len(lines[0].rstrip()) > len(lines[3].rstrip())
    assert "● up  99" in lines[-1]


def test_several_curves_have_marks_or_colours() -> None:
    curves = [("a", [(0.0, 0.0), (1.0, 1.0)]), ("b", [(0.0, 1.0), (1.0, 0.0)])]
    plain = plot_curves(curves, 10, 4)
    assert "●" in plain
    assert "○" in plain
    coloured = plot_curves(curves, 10, 4, uses_colour=True)
    assert "\x1b[36m" in coloured
    assert "\x1b[33m" in coloured


@pytest.mark.parametrize(
    "values",
    [[], [math.nan], [math.inf, -math.inf], [1.0], [1.0, 1.0], [-1.8e308 / 2, 1.7e308], [5e-324, 0.0], [1e308, -1e308]],
)
def test_odd_numbers_are_drawn_or_left_out(values: list[float]) -> None:
    spots = [(float(n), value) for n, value in enumerate(values)]
    for log in (False, True):
        assert plot_curves([("odd", spots)], 10, 3, is_logarithmic=log)
    assert len(format_sparkline(values)) == min(24, len(values))


def test_a_spark_shows_the_shape() -> None:
    assert format_sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert format_sparkline([1.0, math.nan, 0.0]) == "█ ▁"
    assert len(format_sparkline(list(range(1000)))) == 24


def test_runs_are_plotted_over_one_another(amal: Any, run: Ref) -> None:
    other = amal.track.start("experiment:fraud/scoring", title="second").ref
    for which, slope in ((run, 1.0), (other, -1.0)):
        amal.track.log(which, metrics=tuple(Metric("loss", slope * n, 1.0, n) for n in range(500)))
    one = amal.track.plot("loss", (run,), width=40)
    assert one.startswith("loss\n")
    assert "499" in one
    both = amal.track.plot("loss", (run, other), width=40, height=8)
    assert "second" in both
    assert "-499" in both
    amal.track.log(run, metrics=(Metric("broken", float("nan")),))
    assert "nothing to draw" in amal.track.plot("broken", (run,))
    assert isinstance(refusal(lambda: amal.track.plot("los", (run, other))), NotFound)
    for wrong in ({"runs": ()}, {"runs": (run,), "height": 1}, {"runs": (run,), "width": 10**6}):
        assert isinstance(refusal(lambda wrong=wrong: amal.track.plot("loss", **wrong)), Invalid)


def test_every_metric_in_a_line(amal: Any, run: Ref) -> None:
    amal.track.log(run, metrics=tuple(Metric("loss", float(n), 1.0, n) for n in range(8)))
    amal.track.log(run, metrics=(Metric("odd", math.nan),))
    loss, odd = amal.track.sparks(run)
    assert (loss.curve, loss.newest, loss.lowest, loss.num_points) == ("▁▂▃▄▅▆▇█", "7", "0", 8)
    assert (odd.curve, odd.newest, odd.lowest) == (" ", "nan", "nan")


def test_a_list_of_runs_is_for_eyes(amal: Any, run: Ref, capsys: pytest.CaptureFixture[str]) -> None:
    from falaj.cli.output import print_result

    amal.track.log(run, metrics=(Metric("loss", 0.123456789), Metric("odd", math.nan)), params={"lr": "0.1"})
    print_result(amal.track.list())
    head, line = capsys.readouterr().out.splitlines()
    assert head.split("\t")[-2:] == ["metrics", "params"]
    assert line.split("\t")[-2:] == ["loss=0.123457, odd=nan", "lr=0.1"]
    assert "Z" in line.split("\t")[4]
