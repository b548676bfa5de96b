"""Work: what runs and what waits and why, flows under way, and the reader's own runs."""

from collections.abc import Iterable, Sequence
from typing import Any

from falaj.console import components
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import build_resource_url
from falaj.console.page_view import PageView
from falaj.console.pages.home.answers import CachedAnswers
from falaj.jobs.records import JobView
from falaj.track.records import Run

MAX_SHOWN = 5
WORKLOAD_PREFIX = "run."
"""How whoever asked for a job is called where that was a flow or an endpoint: its people's own jobs come first."""


def list_jobs(answers: CachedAnswers, state: str) -> Any:
    """The newest jobs in a state."""
    return answers.ask("jobs", "list", state=state, limit=50)


def render_running_jobs(view: PageView, answers: CachedAnswers) -> Html:
    """Jobs at work, with how far they are."""
    jobs: Sequence[JobView] = list_jobs(answers, "running").jobs
    jobs = sorted(jobs, key=lambda job: job.author.startswith(WORKLOAD_PREFIX))
    return render_items(_render_job(view, job, render_progress(view, job)) for job in jobs[:MAX_SHOWN])


def render_progress(view: PageView, job: JobView) -> Html:
    """A bar where the job says how many steps it has, else its own words."""
    if not job.steps:
        return h.span(job.progress or job.queue, class_="soft", dir="auto")
    name = view.t("home.step", done=job.step, all=job.steps)
    return join_html(h.progress(value=job.step, max=job.steps, aria_label=name), h.small(name, class_="soft"))


def render_waiting_jobs(view: PageView, answers: CachedAnswers) -> Html:
    """Jobs that wait, each with its reason: one decision explains them all."""
    jobs: tuple[JobView, ...] = answers.ask("jobs", "list", state="waiting", limit=MAX_SHOWN, more={"why": "yes"}).jobs
    ask_why = view.t("home.ask_why")
    return render_items(
        _render_job(view, job, _render_wait_reason(view, job) if job.note else h.span(ask_why, class_="soft"))
        for job in jobs
    )


def _render_wait_reason(view: PageView, job: JobView) -> Html:
    reason_text = view.t.of("jobs.reason", job.reason) if job.reason and view.lang != "en" else EMPTY
    return join_html(reason_text, ": " if reason_text else None, view.english(job.note, class_="soft"))


def _render_job(view: PageView, job: JobView, detail: Html) -> Html:
    headline = h.div(
        components.ref_link(view, job.ref), h.small(view.ago(job.submitted_at), class_="soft"), class_="between"
    )
    return h.li(headline, detail, id=components.to_element_id(f"home-{job.state}-{job.ref}"))


def render_flow_runs(view: PageView, answers: CachedAnswers) -> Html:
    """The newest runs of flows."""
    return render_items(
        h.li(
            h.div(components.ref_link(view, flow_run.ref), components.badge(view, flow_run.state), class_="between"),
            h.small(flow_run.note or view.t("home.step", done=sum(step.ended_at > 0 for step in flow_run.steps),
                                       all=len(flow_run.steps)), class_="soft", dir="auto"),
            id=components.to_element_id(f"home-{flow_run.ref}"),
        )
        for flow_run in answers.ask("flows", "runs", limit=MAX_SHOWN).runs
    )  # fmt: skip


def render_own_runs(view: PageView, answers: CachedAnswers) -> Html:
    """What the reader tried last, and what it measured."""
    runs: tuple[Run, ...] = answers.ask("track", "recent", limit=MAX_SHOWN).runs
    return render_items(
        h.li(
            h.div(h.a(h.bdi(run.title or run.ref.name[:8]), href=build_resource_url(run.ref), class_="ref"),
                  components.badge(view, run.status), class_="between"),
            h.div(h.span(_render_metrics(view, run)), h.small(view.ago(run.started), class_="soft"), class_="between"),
            id=components.to_element_id(f"home-{run.ref}"),
        )
        for run in runs
    )  # fmt: skip


def _render_metrics(view: PageView, run: Run) -> Html:
    shown_metrics = sorted(run.metrics.items())[:2]
    return (
        join_html([h.span(h.bdi(name), " ", view.number(metric.value), class_="tag") for name, metric in shown_metrics])
        or EMPTY
    )


def render_items(elements: Iterable[Html]) -> Html:
    """Things below each other; nothing where there are none."""
    item_list = list(elements)
    return h.ul(item_list, class_="plain-list") if item_list else EMPTY
