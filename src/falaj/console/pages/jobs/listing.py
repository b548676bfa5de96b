"""The list of jobs: what runs, what waits and why, how the others ended."""

from collections.abc import Sequence
from typing import Any

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join, text
from falaj.console.page import Page, address
from falaj.console.parts import Column, Field, Row
from falaj.console.view import View
from falaj.fleet.records import QueueView
from falaj.jobs.records import RUNNING, STATES, WAITING, JobView, RoleSpec

MOST = 50


def jobs(view: View) -> Page:
    """Every job that the reader may see, newest first."""
    t, here = view.t, view.here
    more = {"why": "yes", "by": view.query("by"), "name": view.query("name")}
    page = here.jobs.list(
        project=view.query("project"), state=view.query("state"), queue=view.query("queue"), after=view.query("page"),
        limit=MOST, more={key: value for key, value in more.items() if value},
    )  # fmt: skip
    queues: tuple[QueueView, ...] = here.queues.list()
    shown = rows(view, page.jobs) if page.jobs else _nothing(view)
    ways = h.div(
        h.a(t("jobs.ask"), href=address("jobs/new"), class_="button primary"),
        h.a(t("jobs.usage"), href=address("jobs/usage"), class_="button"),
        class_="actions",
    )
    body = join(ways, _sums(view, queues), _filters(view, queues), shown, parts.pager(view, page.next))
    return Page(t("console.room.jobs"), body, live=("jobs",))


def rows(view: View, found: Sequence[JobView]) -> Html:
    """Jobs as a table; also for a queue's page."""
    t = view.t
    columns = (
        t("console.job"), t("console.state"), t("jobs.standing"), t("jobs.needs"), t("jobs.queue"), t("console.who"),
        Column(t("jobs.asked_at"), "n"),
    )  # fmt: skip
    return parts.table(view, columns, [_row(view, one) for one in found], t("console.room.jobs"))


def _row(view: View, one: JobView) -> Row:
    name = join(parts.ref(view, one.ref, short=True), h.br(), h.small(h.bdi(one.ref.project), class_="soft"))
    cells = (
        name, parts.badge(view, one.state), standing(view, one), needs(view, one.spec.roles),
        queue_link(one.queue), who(one.person or one.author), _asked(view, one),
    )  # fmt: skip
    return Row(cells, id=f"row-{one.ref}")


def _asked(view: View, one: JobView) -> Html:
    ran = h.small(view.t("jobs.ran_for", time=view.duration(one.ran_s)), class_="soft") if one.ran_s else None
    return join(view.ago(one.submitted_at), h.br() if ran else None, ran)


def standing(view: View, one: JobView) -> Html:
    """How far it is, why it waits, or how it ended; in one sentence."""
    said = h.span(one.note, dir="auto") if one.note else EMPTY  # whoever ended it may have given the reason
    if one.state == WAITING:
        when = view.t("jobs.starts", when=view.ago(one.starts_at)) if one.starts_at else view.t("jobs.starts_unknown")
        if one.reason:
            said = join(h.strong(view.t.of("jobs.reason", one.reason)), ": ", view.english(one.note))
        return h.div(said, h.br() if said else None, h.small(when, class_="soft"), class_="reason")
    return h.div(progress(view, one) if one.state == RUNNING else None, said, class_="reason")


def progress(view: View, one: JobView) -> Html:
    """A bar where the number of steps is known, else the step."""
    if not one.steps:
        return view.t("jobs.step", step=one.step) if one.step else EMPTY
    share = min(1.0, one.step / one.steps)
    words = view.t("jobs.steps", step=one.step, steps=one.steps)
    return h.div(
        h.progress(value=f"{share:.3f}", max=1, aria_label=words), h.small(words, class_="soft"), class_="so-far"
    )


def needs(view: View, roles: Sequence[RoleSpec]) -> Html:
    """What slots ask for, as people say it."""
    said = []
    for role in roles:
        each = [view.t("jobs.cpus", n=_plain(role.cpus)), h.bdi(role.memory, dir="ltr")]
        if role.gpus:
            each.insert(0, join(view.t("jobs.gpus", n=_plain(role.gpus)), *_models(role)))
        many = h.span(view.number(role.count), " \u00d7 ") if role.count > 1 else None
        said.append(
            h.div(many, [join(" \u00b7 " if n else None, h.bdi(one)) for n, one in enumerate(each)], class_="nowrap")
        )
    return join(*said)


def _models(role: RoleSpec) -> tuple[Any, ...]:
    return (" ", h.bdi("|".join(role.gpu_models))) if role.gpu_models else ()


def who(author: str) -> Html:
    """A person; a run that asks for jobs has a long name, of which the beginning is enough."""
    return h.bdi(f"{author[:12]}…" if len(author) > 24 else author, title=author if len(author) > 24 else None)


def queue_link(name: str) -> Html:
    """The page of a queue."""
    return h.a(h.bdi(name), href=address("queues", {"at": name}), class_="ref")


def _plain(value: float) -> float:
    return int(value) if value == int(value) else value


def _sums(view: View, queues: Sequence[QueueView]) -> Html:
    root = next((one for one in queues if one.name == "root"), None)
    if root is None:
        return EMPTY
    t = view.t
    return h.div(
        parts.stat(
            t("jobs.running"), view.number(root.running), state="busy", link=address("jobs", {"state": RUNNING})
        ),
        parts.stat(t("jobs.waiting"), view.number(root.waiting), link=address("jobs", {"state": WAITING})),
        parts.stat(t("jobs.gpus_held"), h.bdi(root.used.get("gpu", "0")), link=address("clusters")),
        parts.stat(t("jobs.cpus_held"), h.bdi(root.used.get("cpu", "0")), link=address("clusters")),
        class_="stats",
    )


def _filters(view: View, queues: Sequence[QueueView]) -> Html:
    t = view.t
    states = (("", t("console.all")), *((state, t.of("console.state", state)) for state in STATES))
    above = {one.name.rpartition("/")[0] for one in queues}
    names = (("", t("console.all")), *((one.name, text(one.name)) for one in queues if one.name not in above))
    fields = (
        Field("name", t("jobs.begins")), Field("state", t("console.state"), "select", options=states),
        Field("project", t("console.project")), Field("queue", t("jobs.queue"), "select", options=names),
        Field("by", t("console.who")),
    )  # fmt: skip
    return parts.filters(view, fields)


def _nothing(view: View) -> Html:
    if any(view.query(name) for name in ("name", "state", "project", "queue", "by")):
        return parts.empty(view, view.t("jobs.none_fits"), h.a(view.t("jobs.show_all"), href=address("jobs")))
    return parts.empty(view, view.t("jobs.none"), view.t("jobs.none_hint"), "falaj jobs submit train.py --wait")
