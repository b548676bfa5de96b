"""A page with every plot; `python -m tests.console.plots_gallery FOLDER` keeps pictures of it."""

import math
import random
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

from falaj.console import plots
from falaj.console.assets import CONTENT_TYPE_BY_SUFFIX, STATIC_FOLDER
from falaj.console.markup import Html, h
from falaj.console.plots.region_coordinates import find_coordinates
from falaj.console.words import Translator, load_translator

NOON = 1_790_000_000.0
HOSTILE = '"><img src=x onerror=alert(1)>\u202egnp</script>'
CSP = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; trusted-types falaj"


@dataclass(frozen=True)
class Reader:
    """What plots ask of a view."""

    t: Translator

    @property
    def rtl(self) -> bool:
        return self.t.rtl


def reader(lang: str = "en", indic: bool = False) -> Reader:
    return Reader(load_translator(lang, indic))


def every(view: Reader) -> dict[str, Html]:
    """Each plot by name, with much or little in it."""
    chance = random.Random(7)
    return {
        "curves": plots.line_chart(view, _curves(chance), title="validation loss", x="step", y="nats"),
        "time": plots.line_chart(view, _load(chance), title="GPU load", x=plots.TIME_AXIS, y="%"),
        "log": plots.line_chart(
            view, [plots.LineSeries("", range(50), [0.5**n for n in range(50)])], title="rate", log_y=True
        ),
        "spark": h.p("p95 ", plots.sparkline(view, [chance.random() + n / 20 for n in range(40)], title="p95")),
        "empty": plots.line_chart(view, [], title="nothing"),
        "bars": plots.bar_chart(view, _costs(), title="cost by project", unit="AED"),
        "shares": plots.share_bar(view, _traffic(), title="traffic"),
        "histogram": plots.histogram(
            view,
            [0, 10, 20, 50, 100, 200, 500, math.inf],
            [5, 40, 90, 60, 21, 9, 2],
            title="latency, ms",
            reference_counts=[9, 70, 60, 20, 4, 1, 0],
        ),
        "histogram1": plots.histogram(
            view, [n / 24 for n in range(25)], [chance.gammavariate(4, 9) for _ in range(24)], title="amount"
        ),
        "heat": _heat(view, chance, 5, 8),
        "heat-dense": _heat(view, chance, 8, 40),
        "timeline": plots.timeline(view, _spans(), title="attempts"),
        "graph": plots.node_graph(view, *_lineage(), title="lineage"),
        "parallel": plots.parallel_coordinates(view, *_sweep(chance), title="sweep"),
        "world": plots.world_map(view, _zones(False), _flows(False), title="zones of the Emirates"),
        "world-wide": plots.world_map(view, _zones(True), _flows(True), title="zones"),
    }


def _curves(chance: random.Random) -> list[plots.LineSeries]:
    made = []
    for n, name in enumerate(("run-a1", "run-b7 (long warm-up)", "baseline", HOSTILE)):
        ys = [3.2 * math.exp(-i / (150 + 70 * n)) + 0.2 + 0.12 * n + chance.gauss(0, 0.03) for i in range(600)]
        ys[200:220] = [math.nan] * 20 if n == 2 else ys[200:220]
        band = {"low": [y - 0.1 for y in ys], "high": [y + 0.1 for y in ys]} if n == 0 else {}
        made.append(plots.LineSeries(name, [20 * i for i in range(600)], ys, **band))
    return made


def _load(chance: random.Random) -> list[plots.LineSeries]:
    at = [NOON + 60 * n for n in range(240)]
    return [
        plots.LineSeries(f"gpu{g}", at, [50 + 30 * math.sin(n / 30 + g) + chance.random() * 9 for n in range(240)])
        for g in range(8)
    ]


def _costs() -> list[tuple[str, float]]:
    return [
        ("fraud", 12840.0),
        ("churn-and-retention-with-a-long-name", 6110.5),
        ("vision", 990.0),
        ("credit", -400.0),
        (HOSTILE, 12.0),
    ]


def _traffic() -> list[tuple[str, float, str]]:
    return [
        ("v12", 70, "stable"),
        ("v13", 20, "canary"),
        ("v14", 7, "4 replicas"),
        ("v15", 3, ""),
        ("v9", 0, "retired"),
    ]


def _heat(view: Reader, chance: random.Random, rows: int, columns: int) -> Html:
    values = [None if chance.random() < 0.05 else chance.random() for _ in range(rows * columns)]
    names, links = (
        [f"node-{n:02}.gpu.example" for n in range(rows)],
        ["/console/x" if n % 3 else "" for n in range(rows * columns)],
    )
    return plots.heatmap(view, names, [f"gpu{n}" for n in range(columns)], values, title="GPU memory", links=links)


def _spans() -> list[plots.TimelineSpan]:
    hour = 3600
    return [
        plots.TimelineSpan("prepare", "attempt 1", NOON, NOON + 2 * hour, "succeeded", "/console/x"),
        plots.TimelineSpan("train", "attempt 1", NOON + 2 * hour, NOON + 3.5 * hour, "preempted", "/console/x"),
        plots.TimelineSpan("train", "attempt 2", NOON + 4 * hour, NOON + 7 * hour, "failed", "/console/x"),
        plots.TimelineSpan("train", "attempt 3", NOON + 6.6 * hour, None, "running", "/console/x"),
        plots.TimelineSpan("evaluate", "waits", NOON + 8 * hour, NOON + 9 * hour, "waiting"),
        plots.TimelineSpan("تقييم النموذج", "محاولة", NOON + 2.5 * hour, NOON + 5 * hour, "succeeded", "/console/x"),
        plots.TimelineSpan(
            "a step that has quite a long name", "blink", NOON + 5 * hour, NOON + 5 * hour + 5, "succeeded"
        ),
    ]


def _lineage() -> tuple[list[plots.GraphNode], list[tuple[str, str]]]:
    states = {
        "raw": "done",
        "clean": "done",
        "features": "done",
        "labels": "",
        "train": "running",
        "scorer": "waiting",
        "evaluation": "waiting",
        "shadow": "failed",
        "score": "serving",
        "drift": "drifted",
    }
    states[HOSTILE] = ""
    nodes = [plots.GraphNode(n, n, f"dataset:fraud/{n}@v3", s, "/console/x" if s else "") for n, s in states.items()]
    ways = """raw clean features train scorer evaluation, clean labels train, scorer shadow, scorer score drift train,
              raw drift, raw evaluation"""
    return nodes, [pair for way in ways.split(",") for pair in pairwise(way.split())]


def _sweep(chance: random.Random) -> tuple[list[plots.ParallelAxis], list[plots.ParallelLine]]:
    kinds = plots.ParallelAxis("optimizer", choices=("sgd", "adam", "adamw"))
    axes = [
        plots.ParallelAxis("learning rate", log=True),
        plots.ParallelAxis("batch"),
        kinds,
        plots.ParallelAxis("dropout"),
        plots.ParallelAxis("auc"),
    ]
    lines = []
    for n in range(120):
        rate, kind = 10 ** chance.uniform(-5, -1), chance.choice(kinds.choices)
        score = 0.95 - 0.03 * abs(math.log10(rate) + 3) - 0.02 * (kind == "sgd") + chance.gauss(0, 0.01)
        values = (rate, chance.choice((16, 32, 64, 128)), kind, chance.random() * 0.5, score if n % 20 else None)
        lines.append(plots.ParallelLine(f"r{n}", f"run {n}", values, f"/console/track/{n}"))
    return axes, lines


def _zones(wide: bool) -> list[plots.MapPlace]:
    codes = {"AE-AZ": "healthy", "AE-DU": "healthy", "AE-SH": "warning", "AE-FU": "down", "AE-RK": ""}
    codes |= (
        {"SA-01": "healthy", "IE-D": "healthy", "DE-HE": "healthy", "US-VA": "", "SG": "healthy", "IN-MH": "down"}
        if wide
        else {}
    )
    return [
        plots.MapPlace(c, f"zone {c}", *(find_coordinates(c) or (0, 0)), "2 clusters", s, f"/console/zones/{c}")
        for c, s in codes.items()
    ]


def _flows(wide: bool) -> list[tuple[str, str, str]]:
    near = [("AE-AZ", "AE-DU", "allowed"), ("AE-DU", "AE-FU", "denied"), ("AE-SH", "AE-AZ", "asked")]
    return near + (
        [("AE-DU", "IE-D", "denied"), ("IE-D", "US-VA", "allowed"), ("AE-AZ", "SG", "asked")] if wide else []
    )


def page(query: Mapping[str, str]) -> Html:
    """The gallery: ?lang=ar&theme=dark&only=curves."""
    lang = query.get("lang", "en")
    made = every(reader(lang, query.get("digits") == "indic"))
    shown = {name: made[name] for name in query["only"].split(",")} if "only" in query else made
    styles = [h.link(rel="stylesheet", href=f"/{name}") for name in ("tokens.css", "console.css", "plots.css")]
    finer = True if "refetch" in query else None
    cards = [h.section(h.h2(n), one, class_="card", id=f"of-{n}", data_refetch=finer) for n, one in shown.items()]
    main = h.main(h.h1("Plots"), h.p(query.get("from", ""), id="from"), cards, id="main")
    script = h.script(src="/plots.js", type="module")
    head = h.head(
        h.meta(charset="utf-8"), h.meta(name="viewport", content="width=device-width"), styles, script, h.title("Plots")
    )
    return Html(
        "<!doctype html>"
        + h.html(
            head, h.body(main), lang=lang, dir="rtl" if lang == "ar" else "ltr", data_theme=query.get("theme", "light")
        )
    )


class Answer(BaseHTTPRequestHandler):
    """The gallery and our own static files, under a policy as strict as the console's."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        file = STATIC_FOLDER / path.strip("/")
        if path == "/":
            pairs = dict(p.split("=", 1) for p in query.split("&") if "=" in p)
            kind, body = "text/html; charset=utf-8", page(pairs).encode()
        elif file.parent == STATIC_FOLDER and file.is_file():
            kind, body = CONTENT_TYPE_BY_SUFFIX[file.suffix].decode(), file.read_bytes()
        else:
            kind, body = "text/html; charset=utf-8", b""
        self.send_response(200)
        for name, value in (
            ("content-type", kind),
            ("content-length", str(len(body))),
            ("content-security-policy", CSP),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: tests say what matters."""


@contextmanager
def gallery() -> Iterator[str]:
    """The address of the gallery while it is open."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    from tests.servers.browser import DESK, PHONE, Chromium, Tab

    into = Path(sys.argv[1])
    looks = [("en", "light", DESK), ("ar", "dark", DESK), ("en", "dark", PHONE), ("ar", "light", PHONE)]
    with gallery() as origin, Chromium() as browser:
        for lang, theme, size in looks:
            tab = Tab(browser.context(origin, language=lang, theme=theme, size=size), origin)
            tab.open(f"/?lang={lang}&theme={theme}" + ("&digits=indic" if lang == "ar" else ""))
            print(tab.keep(into / f"plots-{lang}-{theme}-{size[0]}.png"), tab.wrong(), tab.axe())


if __name__ == "__main__":
    main()
