"""Jobs: what runs and waits and why, one job from its asking to its cost, a form to ask for one, who used how much."""

from falaj.console.page import PageRoute
from falaj.console.pages.jobs.job_form import render_form_page
from falaj.console.pages.jobs.job_list import render_jobs_page
from falaj.console.pages.jobs.job_logs import download_log, read_tail
from falaj.console.pages.jobs.job_page import render_job_page
from falaj.console.pages.jobs.usage_report import render_usage_page

_JOB_PATH = "jobs/job:fraud/train"
ROUTES: tuple[PageRoute, ...] = (
    PageRoute("jobs", render_jobs_page, walk=("jobs", "jobs?state=cancelled")),
    PageRoute(
        "jobs/new", render_form_page, walk=("jobs/new?project=fraud&name=again&command=python3+train.py&cpus=0.1",)
    ),
    PageRoute("jobs/usage", render_usage_page, walk=("jobs/usage?by=person&since=30d",)),
    PageRoute(
        "jobs/<ref>",
        render_job_page,
        walk=(
            f"{_JOB_PATH}-1",
            f"{_JOB_PATH}-5",
            f"{_JOB_PATH}-2?tab=logs",
            f"{_JOB_PATH}-4?tab=figures",
            f"{_JOB_PATH}-1?tab=profile",
            f"{_JOB_PATH}-1?tab=cost",
        ),
    ),
    PageRoute("jobs/<ref>/tail", read_tail, walk=(f"{_JOB_PATH}-1/tail",)),
    PageRoute("jobs/<ref>/log", download_log, walk=(f"{_JOB_PATH}-1/log",)),
)
