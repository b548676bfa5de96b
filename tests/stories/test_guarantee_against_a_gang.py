"""guarantee_against_a_gang: neither one large gang nor a high band keeps a lender from its guarantee."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.lab import Lab

pytestmark = pytest.mark.timeout(240)
SAVES = """
import time
from falaj import worker
attempt = worker.attempt()
while attempt.asked() != "stop":
    time.sleep(0.05)
attempt.yield_place()
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Sixteen GPUs of an imitated cluster, and two queues that are promised a part of them."""
    lab = Lab(tmp_path)
    with lab.here, lab.here.working():
        lab.here.clusters.change("local", {"address": "process:?nodes=4&cpus=8000&memory=8192&gpus=4&model=H100"})
        yield lab


def add_queues(lab: Lab, **guaranteed_gpus: int) -> None:
    """One queue a team of this project, each with its guarantee."""
    for team, gpus in guaranteed_gpus.items():
        lab.here.queues.add(f"root/{team}", guarantee={"gpu": str(gpus)} if gpus else {}, projects=(f"house/{team}",))


def test_a_gang_in_a_queue_with_a_guarantee_gives_way_whole(lab: Lab) -> None:
    add_queues(lab, lender=1, borrower=1)
    gang = lab.submit(SAVES, "gang", project="borrower", workers=4, gpus=4, checkpoint="save=1s,restart=1s")
    lab.until(gang, lambda job: job.state == "running")
    claim = lab.done(lab.submit("print('mine')", "claim", project="lender", gpus=1))
    assert claim.state == "succeeded"
    gang = lab.show(gang)
    assert gang.evictions == 1
    assert str(claim.ref) in gang.attempts[0].outcome
    lab.until(gang, lambda job: job.state == "running")  # the lender is done: it goes on


def test_a_high_band_of_the_borrower_does_not_protect_it(lab: Lab) -> None:
    add_queues(lab, lender=1, borrower=0)
    lab.here.queues.change("root/borrower", {"top_band": "high"})
    gang = [
        lab.submit(SAVES, f"job{number}", project="borrower", gpus=4, band="high", checkpoint="save=1s,restart=1s")
        for number in range(4)
    ]
    for job in gang:
        lab.until(job, lambda shown: shown.state == "running")
    claim = lab.done(lab.submit("print('mine')", "claim", project="lender", gpus=1))
    assert claim.state == "succeeded"
    assert sum(lab.show(job).evictions for job in gang) == 1
