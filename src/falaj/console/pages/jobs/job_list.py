"""The list of jobs: what runs, what waits and why, how the others ended."""

from collections.abc import Sequence
from typing import Any

from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.markup import EMPTY, Html, escape_text, h, join_html
from falaj.console.page import Page, build_url
from falaj.console.page_view import PageView
from falaj.fleet.records import QueueView
from falaj.jobs.records import RUNNING, STATES, WAITING, JobView, RoleSpec

MAX_JOBS = 50


def render_jobs_page(view: PageView) -> Page:
    """Every job that the reader may see, newest first."""
    t, client = view.t, view.here
    filter_options = {"why": "yes", "by": view.query("by"), "name": view.query("name")}
    page = client.jobs.list(
        project=view.query("project"),
        state=view.query("state"),
        queue=view.query("queue"),
        after=view.query("page"),
        limit=MAX_JOBS,
        more={key: value for key, value in filter_options.items() if value},
    )
    queues: tuple[QueueView, ...] = client.queues.list()
    job_table = render_job_table(view, page.jobs) if page.jobs else _render_empty(view)
    links = h.div(
        h.a(t("jobs.ask"), href=build_url("jobs/new"), class_="button primary"),
        h.a(t("jobs.usage"), href=build_url("jobs/usage"), class_="button"),
        class_="actions",
    )
    body = join_html(
        links, _render_totals(view, queues), _render_filters(view, queues), job_table, components.pager(view, page.next)
    )
    return Page(t("console.room.jobs"), body, live=("jobs",))


def render_job_table(view: PageView, jobs: Sequence[JobView]) -> Html:
    """Jobs as a table; also for a queue's page."""
    t = view.t
    columns = (
        t("console.job"),
        t("console.state"),
        t("jobs.standing"),
        t("jobs.needs"),
        t("jobs.queue"),
        t("console.who"),
        ColumnHeader(t("jobs.asked_at"), "n"),
    )
    return components.table(view, columns, [_make_row(view, job) for job in jobs], t("console.room.jobs"))


def _make_row(view: PageView, job: JobView) -> TableRow:
    name = join_html(
        components.ref_link(view, job.ref, short=True), h.br(), h.small(h.bdi(job.ref.project), class_="soft")
    )
    cells = (
        name,
        components.badge(view, job.state),
        render_standing(view, job),
        render_needs(view, job.spec.roles),
        render_queue_link(job.queue),
        render_author(job.person or job.author),
        _render_submitted(view, job),
    )
    return TableRow(cells, id=f"row-{job.ref}")


def _render_submitted(view: PageView, job: JobView) -> Html:
    run_time = h.small(view.t("jobs.ran_for", time=view.duration(job.ran_s)), class_="soft") if job.ran_s else None
    return join_html(view.ago(job.submitted_at), h.br() if run_time else None, run_time)


def render_standing(view: PageView, job: JobView) -> Html:
    """How far it is, why it waits, or how it ended; in one sentence."""
    note_text = h.span(job.note, dir="auto") if job.note else EMPTY  # whoever ended it may have given the reason
    if job.state == WAITING:
        start_text = (
            view.t("jobs.starts", when=view.ago(job.starts_at)) if job.starts_at else view.t("jobs.starts_unknown")
        )
        if job.reason:
            note_text = join_html(h.strong(view.t.of("jobs.reason", job.reason)), ": ", view.english(job.note))
        return h.div(note_text, h.br() if note_text else None, h.small(start_text, class_="soft"), class_="reason")
    return h.div(render_progress(view, job) if job.state == RUNNING else None, note_text, class_="reason")


def render_progress(view: PageView, job: JobView) -> Html:
    """A bar where the number of steps is known, else the step."""
    if not job.steps:
        return view.t("jobs.step", step=job.step) if job.step else EMPTY
    share = min(1.0, job.step / job.steps)
    label = view.t("jobs.steps", step=job.step, steps=job.steps)
    return h.div(
        h.progress(value=f"{share:.3f}", max=1, aria_label=label), h.small(label, class_="soft"), class_="so-far"
    )


def render_needs(view: PageView, roles: Sequence[RoleSpec]) -> Html:
    """What slots ask for, as people say it."""
    role_lines = []
    for role in roles:
        amounts = [view.t("jobs.cpus", n=_drop_zero_fraction(role.cpus)), h.bdi(role.memory, dir="ltr")]
        if role.gpus:
            amounts.insert(
                0, join_html(view.t("jobs.gpus", n=_drop_zero_fraction(role.gpus)), *_format_gpu_models(role))
            )
        count_text = h.span(view.number(role.count), " \u00d7 ") if role.count > 1 else None
        role_lines.append(
            h.div(
                count_text,
                [join_html(" \u00b7 " if n else None, h.bdi(amount)) for n, amount in enumerate(amounts)],
                class_="nowrap",
            )
        )
    return join_html(*role_lines)


def _format_gpu_models(role: RoleSpec) -> tuple[Any, ...]:
    return (" ", h.bdi("|".join(role.gpu_models))) if role.gpu_models else ()


def render_author(author: str) -> Html:
    """A person; a run that asks for jobs has a long name, of which the beginning is enough."""
    return h.bdi(f"{author[:12]}…" if len(author) > 24 else author, title=author if len(author) > 24 else None)


def render_queue_link(name: str) -> Html:
    """The page of a queue."""
    return h.a(h.bdi(name), href=build_url("queues", {"at": name}), class_="ref")


def _drop_zero_fraction(value: float) -> float:
    return int(value) if value == int(value) else value


def _render_totals(view: PageView, queues: Sequence[QueueView]) -> Html:
    root = next((queue for queue in queues if queue.name == "root"), None)
    if root is None:
        return EMPTY
    t = view.t
    return h.div(
        components.stat_tile(
            t("jobs.running"), view.number(root.running), state="busy", link=build_url("jobs", {"state": RUNNING})
        ),
        components.stat_tile(t("jobs.waiting"), view.number(root.waiting), link=build_url("jobs", {"state": WAITING})),
        components.stat_tile(t("jobs.gpus_held"), h.bdi(root.used.get("gpu", "0")), link=build_url("clusters")),
        components.stat_tile(t("jobs.cpus_held"), h.bdi(root.used.get("cpu", "0")), link=build_url("clusters")),
        class_="stats",
    )


def _render_filters(view: PageView, queues: Sequence[QueueView]) -> Html:
    t = view.t
    state_options = (("", t("console.all")), *((state, t.of("console.state", state)) for state in STATES))
    parent_names = {queue.name.rpartition("/")[0] for queue in queues}
    queue_options = (
        ("", t("console.all")),
        *((queue.name, escape_text(queue.name)) for queue in queues if queue.name not in parent_names),
    )
    fields = (
        FormField("name", t("jobs.begins")),
        FormField("state", t("console.state"), "select", options=state_options),
        FormField("project", t("console.project")),
        FormField("queue", t("jobs.queue"), "select", options=queue_options),
        FormField("by", t("console.who")),
    )
    return components.filter_form(view, fields)


def _render_empty(view: PageView) -> Html:
    if any(view.query(name) for name in ("name", "state", "project", "queue", "by")):
        return components.empty_state(
            view, view.t("jobs.none_fits"), h.a(view.t("jobs.show_all"), href=build_url("jobs"))
        )
    return components.empty_state(
        view, view.t("jobs.none"), view.t("jobs.none_hint"), "falaj jobs submit train.py --wait"
    )
