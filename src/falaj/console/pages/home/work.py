"""Work: what runs and what waits and why, flows under way, and the reader's own runs."""

from collections.abc import Iterable, Sequence
from typing import Any

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import href
from falaj.console.pages.home.answers import Answers
from falaj.console.view import View
from falaj.jobs.records import JobView
from falaj.track.records import Run

SHOWN = 5
OF_WORK = "run."
"""How whoever asked for a job is called where that was a flow or an endpoint: its people's own jobs come first."""


def listed(told: Answers, state: str) -> Any:
    """The newest jobs in a state."""
    return told.ask("jobs", "list", state=state, limit=50)


def runs(view: View, told: Answers) -> Html:
    """Jobs at work, with how far they are."""
    found: Sequence[JobView] = listed(told, "running").jobs
    found = sorted(found, key=lambda one: one.author.startswith(OF_WORK))
    return items(_job(view, one, progress(view, one)) for one in found[:SHOWN])


def progress(view: View, job: JobView) -> Html:
    """A bar where the job says how many steps it has, else its own words."""
    if not job.steps:
        return h.span(job.progress or job.queue, class_="soft", dir="auto")
    name = view.t("home.step", done=job.step, all=job.steps)
    return join(h.progress(value=job.step, max=job.steps, aria_label=name), h.small(name, class_="soft"))


def waits(view: View, told: Answers) -> Html:
    """Jobs that wait, each with its reason: one decision explains them all."""
    found: tuple[JobView, ...] = told.ask("jobs", "list", state="waiting", limit=SHOWN, more={"why": "yes"}).jobs
    said = view.t("home.ask_why")
    return items(_job(view, one, _why(view, one) if one.note else h.span(said, class_="soft")) for one in found)


def _why(view: View, job: JobView) -> Html:
    word = view.t.of("jobs.reason", job.reason) if job.reason and view.lang != "en" else EMPTY
    return join(word, ": " if word else None, view.english(job.note, class_="soft"))


def _job(view: View, job: JobView, more: Html) -> Html:
    head = h.div(parts.ref(view, job.ref), h.small(view.ago(job.submitted_at), class_="soft"), class_="between")
    return h.li(head, more, id=parts.slug(f"home-{job.state}-{job.ref}"))


def flows(view: View, told: Answers) -> Html:
    """The newest runs of flows."""
    return items(
        h.li(
            h.div(parts.ref(view, one.ref), parts.badge(view, one.state), class_="between"),
            h.small(one.note or view.t("home.step", done=sum(step.ended_at > 0 for step in one.steps),
                                       all=len(one.steps)), class_="soft", dir="auto"),
            id=parts.slug(f"home-{one.ref}"),
        )
        for one in told.ask("flows", "runs", limit=SHOWN).runs
    )  # fmt: skip


def mine(view: View, told: Answers) -> Html:
    """What the reader tried last, and what it measured."""
    found: tuple[Run, ...] = told.ask("track", "recent", limit=SHOWN).runs
    return items(
        h.li(
            h.div(h.a(h.bdi(one.title or one.ref.name[:8]), href=href(one.ref), class_="ref"),
                  parts.badge(view, one.status), class_="between"),
            h.div(h.span(_measured(view, one)), h.small(view.ago(one.started), class_="soft"), class_="between"),
            id=parts.slug(f"home-{one.ref}"),
        )
        for one in found
    )  # fmt: skip


def _measured(view: View, run: Run) -> Html:
    shown = sorted(run.metrics.items())[:2]
    return join([h.span(h.bdi(name), " ", view.number(one.value), class_="tag") for name, one in shown]) or EMPTY


def items(made: Iterable[Html]) -> Html:
    """Things below each other; nothing where there are none."""
    found = list(made)
    return h.ul(found, class_="plain-list") if found else EMPTY
