"""Jobs: what runs and waits and why, one job from its asking to its cost, a form to ask for one, who used how much."""

from falaj.console.page import Route
from falaj.console.pages.jobs.asking import asking
from falaj.console.pages.jobs.job import job
from falaj.console.pages.jobs.listing import jobs
from falaj.console.pages.jobs.logs import download, tail
from falaj.console.pages.jobs.usage import usage

_ONE = "jobs/job:fraud/train"
ROUTES: tuple[Route, ...] = (
    Route("jobs", jobs, walk=("jobs", "jobs?state=cancelled")),
    Route("jobs/new", asking, walk=("jobs/new?project=fraud&name=again&command=python3+train.py&cpus=0.1",)),
    Route("jobs/usage", usage, walk=("jobs/usage?by=person&since=30d",)),
    Route("jobs/<ref>", job, walk=(f"{_ONE}-1", f"{_ONE}-5", f"{_ONE}-2?tab=logs", f"{_ONE}-4?tab=figures",
                                   f"{_ONE}-1?tab=profile", f"{_ONE}-1?tab=cost")),
    Route("jobs/<ref>/tail", tail, walk=(f"{_ONE}-1/tail",)),
    Route("jobs/<ref>/log", download, walk=(f"{_ONE}-1/log",)),
)  # fmt: skip
