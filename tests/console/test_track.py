"""The pages of experiments and runs: what they show, what they say when asked wrongly, what they never run."""

import pytest

from falaj.console.markup import Html
from falaj.console.page import FileDownload
from falaj.console.pages.track import compare_runs, note_markup, run_coordinates, run_curves
from falaj.console.plots import LineSeries
from falaj.core.ref import Ref
from falaj.track.records import Curve, Metric
from tests.console.ground import Ground, Visitor

SCORING = "/console/track/experiment:fraud/scoring"
RUN = f"/console/track/run:fraud/{0:032x}"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


def test_experiments_are_listed_and_found(amal: Visitor) -> None:
    seen = amal.get("/console/track")
    assert SCORING in [link["href"] for link in seen.main.all("td a")]
    assert "Which rate scores best?" in amal.get("/console/track?q=SCORES").text
    assert "Which rate" not in amal.get("/console/track?q=it%27s%25").text
    assert "Which rate" not in amal.get("/console/track?state=deleted").text


def test_runs_are_a_plain_table_that_sorts_filters_and_pages(amal: Visitor) -> None:
    seen = amal.get(f"{SCORING}?where=metrics.loss<1+and+status='FINISHED'&order=params.seed+DESC")
    names = [row.all("td")[1].text for row in seen.main.all("#grid tbody tr")]
    assert names == ["rate 6", "rate 4", "rate 3", "rate 2", "rate 1", "rate 0"]
    assert "6 runs" in seen.text
    chosen = amal.get(f"{SCORING}?columns=metrics.loss,+params.rate&page=6")
    assert [head.text for head in chosen.main.all("#grid thead th")] == ["Select", "Run", "loss", "rate"]
    assert len(chosen.main.all("#grid tbody tr")) == 2


@pytest.mark.parametrize("field", ["where", "columns"])
def test_what_is_wrong_is_said_beside_the_field(amal: Visitor, field: str) -> None:
    seen = amal.get(f"{SCORING}?{field}=metrics.")
    wrong = seen.main.one(f"input[name={field}]")
    assert (seen.status, wrong["aria-invalid"], wrong["value"]) == (200, "true", "metrics.")
    assert "a key after the dot" in seen.main.one(f"#{wrong['aria-describedby']}").text


def test_a_window_holds_what_was_asked_for(amal: Visitor) -> None:
    where = "/console/track/grid?experiment=experiment:fraud/scoring&first=2&rows=3&left=3&width=2"
    told = amal.get(f"{where}&order=params.seed").json
    assert (told["rows"], told["columns"], len(told["cells"])) == (8, 10, 3)
    assert [head["column"] for head in told["heads"]] == ["params.rate", "params.seed"]
    assert [row["values"] for row in told["cells"]] == [["0.04", "2"], ["0.08", "3"], ["0.16", "4"]]
    found = amal.get("/console/track/grid?rows=0&find=ACC").json
    assert [head["name"] for head in found["heads"]] == ["accuracy"]
    assert amal.get("/console/track/grid?where=(").status == 400


def test_nobody_sees_runs_of_another_tenant(platform: Ground) -> None:
    sara = platform.visitor("sara")
    assert "rate" not in sara.get("/console/track/runs").text
    assert sara.get(SCORING).status == 404
    assert sara.get(f"/console/track/compare?runs=fraud~{0:032x}~{1:032x}").status == 404


def test_a_run_shows_what_it_was_and_measured(amal: Visitor) -> None:
    seen = amal.get(RUN)
    assert "dataset:fraud/transactions@v1" in [one.text for one in seen.main.all("a.ref")]
    assert len(seen.main.all("svg.spark")) == 2
    drawn = amal.get(f"{RUN}?tab=curves&metric=loss&x=time&smooth=0.6&log=1")
    assert len(drawn.main.all("figure.plot-line")) == 1
    assert drawn.main.all("[data-refetch]")
    near = amal.get(f"{RUN}?tab=curves&metric=loss&from=10&to=20").main.one("path.stroke")
    assert near["data-x"].count(",") == 10


def test_a_run_is_deleted_and_restored(platform: Ground, amal: Visitor) -> None:
    run = f"/console/track/run:fraud/{6:032x}"
    back = amal.follow(amal.press(run, "track", "delete"))
    assert "can be restored" in back.text
    assert "7 runs" in amal.get(SCORING).text
    assert amal.press(run, "track", "restore").status == 303
    assert platform.as_("amal").track.show(f"run:fraud/{6:032x}").state == "active"


def test_files_are_shown_as_text_and_saved_as_bytes(platform: Ground, amal: Visitor) -> None:
    assert "do not use it for lending" in amal.get(f"{RUN}?tab=files&path=report.md").main.one("#preview").text
    assert amal.get(f"{RUN}?tab=files&path=plots").main.all("td a")[0].text == "loss.json"
    track = platform.as_("amal").track
    for name, body in (
        ("a.png", PNG),
        ("b.png", b"<svg onload=alert(1)>"),
        ("c.csv", b"x,y\n1,<b>\n"),
        ("d.bin", b"\0"),
    ):
        track.attach(f"run:fraud/{0:032x}", name, body)
    shown = amal.get(f"{RUN}?tab=files&path=a.png").main.one("#preview img")["src"]
    assert amal.get(shown).headers["content-type"] == "image/png"
    liar = amal.get(f"{RUN}/file?path=b.png&show=1")
    assert liar.headers["content-type"] == "application/octet-stream"
    assert liar.headers["content-disposition"].startswith("attachment")
    assert [one.text for one in amal.get(f"{RUN}?tab=files&path=c.csv").main.all("#preview td")] == ["1", "<b>"]
    assert "not text" in amal.get(f"{RUN}?tab=files&path=d.bin").text


def test_hostile_files_are_words(amal: Visitor) -> None:
    run = f"/console/track/run:hostile/{0xBAD:032x}"
    for path in ("notes/card.md", "page.html", "drawing.svg"):
        seen = amal.get(f"{run}?tab=files&path={path}")
        assert "alert(" in seen.main.one("#preview").text
        assert not seen.main.all("#preview script") + seen.main.all("#preview iframe") + seen.main.all("#preview a")


def test_runs_are_compared(amal: Visitor) -> None:
    seen = amal.get(f"/console/track/compare?runs=fraud~{0:032x}~{5:032x}&metric=loss")
    rows = {row.all("td")[0].text: row.all("td")[1].text for row in seen.main.all(".pinned tbody tr")}
    assert rows["rate parameter"] == "0.01"
    assert len(seen.main.all("figure.plot-parallel path.run")) == 2
    assert [one.text for one in seen.main.all("figure.plot-line .plot-legend bdi")] == ["rate 0", "rate 5"]
    boxes = f"r.0=run:fraud/{0:032x}&r.3=run:fraud/{5:032x}"
    assert "2 runs compared" in amal.get(f"/console/track/compare?{boxes}").tree.one("h1").text
    assert "Choose the runs" in amal.get("/console/track/compare").text


def test_models_and_traces_have_pages(platform: Ground, amal: Visitor) -> None:
    here = platform.as_("amal")
    made = here.outputs.create("experiment:fraud/scoring", "scorer", "tree", f"run:fraud/{0:032x}", {"depth": "3"}).ref
    seen = amal.get(f"{SCORING}?tab=models").main.all("td a")[0]
    assert (seen.text, seen["href"]) == ("scorer", f"/console/track/{made}")
    assert "depth" in amal.get(seen["href"]).text
    facts = {"request": "<b>ask</b>", "response": "told", "model": "x"}
    kept = here.traces.record("experiment:fraud/scoring", f"tr-{1:032x}", facts=facts, lasted_s=0.25).ref
    assert amal.get(f"{SCORING}?tab=traces").main.all("td a")[0]["href"] == f"/console/track/{kept}"
    told = amal.get(f"/console/track/{kept}")
    assert "<b>ask</b>" in told.text
    assert "250 ms" in told.text


def test_an_experiment_is_renamed(amal: Visitor) -> None:
    where = "/console/track/experiment:fraud/rates"
    assert amal.press(f"{where}?tab=about", "track", "change", title="Rates, again").status == 303
    assert amal.get(where).tree.one("h1").text == "Rates, again"


def test_a_sweep_shows_its_trials_best_first(amal: Visitor) -> None:
    assert "rates" in amal.get("/console/sweeps?state=stopped").text
    seen = amal.get("/console/sweeps/sweep:fraud/rates")
    values = [float(row.all("td")[2].text) for row in seen.main.all("tbody tr")]
    assert len(values) == 6
    assert values == sorted(values)
    assert len(seen.main.all("path.run")) == 6


def test_runs_of_an_address_are_read_as_they_are_written() -> None:
    runs = tuple(Ref("run", project, f"{n:032x}") for project, n in (("a", 1), ("a", 2), ("b", 3)))
    assert compare_runs.parse_chosen_runs({"runs": compare_runs.pack_runs(runs)}) == runs


@pytest.mark.parametrize(
    ("values", "log", "choices"),
    [((1.0, 2.0), False, []), ((0.001, 1.0, None), True, []), (("a", "b", "a"), False, ["a", "b"])],
)
def test_what_can_be_an_axis(values: tuple[run_coordinates.CellValue, ...], log: bool, choices: list[str]) -> None:
    made = run_coordinates.make_axis("x", values)
    assert made is not None
    assert (made.log, list(made.choices)) == (log, choices)


def test_what_cannot_be_an_axis() -> None:
    assert run_coordinates.make_axis("x", (None, None)) is None
    assert run_coordinates.make_axis("x", [str(n) + "x" for n in range(99)]) is None
    assert run_coordinates.to_numbers(["1", "", None, "2.5"]) == [1.0, None, None, 2.5]
    assert run_coordinates.to_numbers(["1", "two"]) == ["1", "two"]


def test_a_folded_curve_has_a_band() -> None:
    points = [Metric("m", value, 100.0 + n, n) for n, value in enumerate([1.0, 9.0, 5.0, 2.0, 8.0, 4.0, 3.0])]
    whole = run_curves.to_series(Curve("m", tuple(points), total=7), "m", "step")
    assert (list(whole.xs), whole.low) == ([0, 1, 2, 3, 4, 5, 6], ())
    folded = run_curves.to_series(Curve("m", tuple(points), total=700), "m", "time")
    assert folded == LineSeries("m", [102.0, 105.0, 106.0], [5.0, 4.0, 3.0], [1.0, 2.0, 3.0], [9.0, 8.0, 3.0])


def test_smoothing_begins_where_the_curve_does() -> None:
    made = run_curves.smooth_series(LineSeries("m", (0, 1, 2, 3), (4.0, 4.0, None, 8.0)), 0.5)
    assert made.ys[:3] == [4.0, 4.0, None]
    assert 4.0 < (made.ys[3] or 0) < 8.0


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("# A\nb", "<p class=\"note-1\"><strong>A</strong></p><p>b</p>"),
        ("- x\n- `y`", "<ul><li>x</li><li><code>y</code></li></ul>"),
        ("```\n<b>\n```", '<pre tabindex="0"><code>&lt;b&gt;</code></pre>'),
        ("**s** *e* [a](javascript:x) <i>", "<p><strong>s</strong> <em>e</em> [a](javascript:x) &lt;i&gt;</p>"),
        ("\n\n", ""),
    ],
)  # fmt: skip
def test_a_note_knows_little_markdown(text: str, made: str) -> None:
    assert note_markup.render_note(text) == Html(f'<div class="note" dir="auto">{made}</div>')


@pytest.mark.parametrize(
    ("body", "kind"),
    [(PNG, "image/png"), (b"\xff\xd8\xff\xe0", "image/jpeg"), (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"), (b"<svg>", "")],
)
def test_a_picture_is_what_begins_as_one(body: bytes, kind: str) -> None:
    assert FileDownload("x", body, shown=True).picture == kind
    assert FileDownload("x", body).picture == ""
