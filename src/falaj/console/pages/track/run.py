"""One run: what it was told, what it used and made, what it measured, and its files."""

from collections.abc import Mapping, Sequence

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, address
from falaj.console.pages.track import curves
from falaj.console.pages.track.files import files
from falaj.console.pages.track.texts import NOTE, note
from falaj.console.parts import Field
from falaj.console.plots import Series, line, spark
from falaj.console.view import View
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.track.records import Run, UsedData

_ROWS, _SPARKS, _DRAWN = 100, 12, 8
_SYSTEM = ("mlflow.source", "mlflow.user", "system.")


def run(view: View, ref: Ref) -> Page:
    """A run, in the part that was asked for."""
    t, found = view.t, view.here.track.show(ref)
    tabs = (("overview", t("console.overview")), ("curves", t("track.curves")), ("files", t("console.files")))
    now = view.query("tab", "overview")
    if now == "curves":
        body = _curves(view, found)
    elif now == "files":
        body = view.part(lambda: files(view, found.ref))
    else:
        body = _overview(view, found)
    deleted = parts.notice("warn", t("track.is_deleted")) if found.state != "active" else EMPTY
    crumbs = ((h.bdi(found.experiment.name), address(f"track/{found.experiment}")),)
    head = h.div(parts.badge(view, found.status), _actions(view, found), class_="grid-bar")
    return Page(h.bdi(found.title), join(deleted, head, parts.tabs(view, tabs), body), crumbs,
                live=("track",), scripts=("plots.js",), every_s=5.0 if found.status == "running" else 0.0)  # fmt: skip


def _actions(view: View, found: Run) -> Html:
    t = view.t
    if found.state != "active":
        return parts.action(view, "track", "restore", {"name": found.ref}, t("track.restore"), primary=True)
    statuses = [(one, t.of("console.state", one)) for one in ("finished", "failed", "killed")]
    end = parts.action(view, "track", "end", {"run": found.ref}, t("track.end"),
                       (Field("status", t("console.state"), "select", options=statuses),))  # fmt: skip
    fields = (Field("path", t("track.model_path"), hint=t("track.model_path_hint")),
              Field("model", t("console.model"), value=f"model:{found.ref.project}/", required=True),
              Field("message", t("console.note")))  # fmt: skip
    return h.div(
        end if found.status in ("running", "scheduled") else None,
        parts.action(view, "track", "register", {"run": found.ref, "path": ""}, t("track.register"), fields),
        parts.action(view, "track", "attach", {"run": found.ref}, t("track.attach"),
                     (Field("path", t("track.path"), value="notes.md", required=True),
                      Field("data", t("track.text"), "textarea", required=True))),
        parts.action(view, "track", "delete", {"name": found.ref}, t("console.delete"), danger=True,
                     confirm=t("track.delete_hint")),
        class_="actions",
    )  # fmt: skip


def _overview(view: View, found: Run) -> Html:
    t = view.t
    told = parts.facts([
        (t("console.name"), h.code(found.ref, dir="ltr")), (t("console.by"), h.bdi(found.author)),
        (t("console.started"), view.when(found.started)), (t("console.ended"), view.when(found.ended)),
        (t("console.took"), view.duration((found.ended or view.now) - found.started)),
        (t("console.zone"), h.bdi(found.zone)), (t("console.label"), h.bdi(found.label.words)),
        (t("console.job"), _job(view, found.tags.get("job", ""))),
    ])  # fmt: skip
    said = found.tags.get(NOTE, "")
    system = {key: value for key, value in found.tags.items() if key.startswith(_SYSTEM)}
    own = {key: value for key, value in found.tags.items() if key not in system and key != NOTE}
    return join(
        parts.cards(parts.card(t("console.overview"), told, wide=True), *_card(t("console.tags"), own),
                    *_card(t("track.system"), system), *([parts.card(t("console.note"), note(said))] if said else [])),
        _metrics(view, found), _params(view, found), _used(view, found.inputs, found),
    )  # fmt: skip


def _metrics(view: View, found: Run) -> Html:
    """The newest of each metric; of the first ones how they went."""
    t, wanted = view.t, view.query("q").casefold()
    keys = [key for key in sorted(found.metrics) if wanted in key.casefold()]
    if not found.metrics:
        return parts.card(t("track.metrics"), h.p(t("track.no_metrics"), class_="soft"))
    rows, went = [], _went(view, found, keys)
    for key in keys[:_ROWS]:
        one = found.metrics[key]
        link = h.a(h.bdi(key), href=view.link(tab="curves", metric=key, q=""))
        rows.append((link, went.get(key, EMPTY), view.number(one.number), view.number(one.step), view.when(one.at)))
    numbers = [parts.Column(name, "n") for name in (t("console.value"), t("track.step"))]
    heads: tuple[parts.Column | str, ...] = (t("track.metric"), t("track.went"), *numbers, t("console.when"))
    find = parts.filters(view, (Field("q", t("track.name_has")),)) if len(found.metrics) > _SPARKS else EMPTY
    more = h.p(t("track.more_metrics", n=len(keys) - _ROWS), class_="soft") if len(keys) > _ROWS else EMPTY
    return parts.card(t("track.metrics"), find, parts.table(view, heads, rows, t("track.metrics")), more)


def _went(view: View, found: Run, keys: Sequence[str]) -> dict[str, Html]:
    """Small curves of the first metrics, asked for together."""
    drawn = view.here.track.curves((found.ref,), tuple(keys[:_SPARKS]), bins=30)
    told = [(one.curve.key, [None if point.odd else point.value for point in one.curve.points]) for one in drawn]
    return {key: spark(view, values, title=key) for key, values in told}


def _params(view: View, found: Run) -> Html:
    if not found.params:
        return EMPTY
    rows = [(h.bdi(key), h.bdi(value[:500])) for key, value in sorted(found.params.items())[:500]]
    heads = (view.t("track.param"), view.t("console.value"))
    return parts.card(view.t("track.params"), parts.table(view, heads, rows, view.t("track.params")))


def _used(view: View, used: tuple[UsedData, ...], found: Run) -> Html:
    t = view.t
    rows = [
        (t("track.input"), h.bdi(one.name),
         parts.ref(view, one.ref) if one.ref else h.bdi(one.source[:200]), h.code(one.digest[:20], dir="ltr"))
        for one in used[:100]
    ]  # fmt: skip
    rows += [
        (t("track.output"), h.bdi(one.id), parts.ref(view, Ref("output", found.ref.project, one.id)), EMPTY)
        for one in found.outputs[:100]
    ]
    if not rows:
        return EMPTY
    heads = (t("console.kind"), t("console.name"), t("track.what"), t("track.digest"))
    return parts.card(t("track.used"), parts.table(view, heads, rows, t("track.used")))


def _curves(view: View, found: Run) -> Html:
    """One metric large, or those with which the run is first known."""
    t, keys = view.t, sorted(found.metrics)
    if not keys:
        return parts.empty(view, t("track.no_metrics"), t("track.no_metrics_hint"), f"falaj track log {found.ref}")
    chosen = view.query("metric") if view.query("metric") in found.metrics else ""
    shown = [chosen] if chosen else keys[:_DRAWN]
    plots = [_curve(view, one, 420 if chosen else 240) for one in curves.asked(view, (found.ref,), shown)]
    drawn = h.div([h.div(one, class_="card") for one in plots], class_=None if chosen else "cards",
                  data_refetch=True if chosen else None)  # fmt: skip
    return join(curves.choices(view, ["", *keys[:500]], chosen), curves.whole(view) if chosen else None, drawn)


def _card(title: str | Html, given: Mapping[str, str]) -> list[Html]:
    shown = [(h.bdi(key), h.bdi(value[:300])) for key, value in list(given.items())[:50]]
    return [parts.card(title, parts.facts(shown))] if shown else []


def _curve(view: View, one: Series, height: int) -> Html:
    return line(view, [one], title=one.name, x=curves.axis(view), log_y=view.query("log") == "1", height=height)


def _job(view: View, said: str) -> Html:
    """The job that the run is of; the tag is anybody's to write."""
    try:
        return parts.ref(view, said) if said.startswith("job:") else EMPTY
    except Invalid:
        return EMPTY
