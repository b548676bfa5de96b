"""A fix is the same call whether it is typed or pressed, in the units that people write."""

from pathlib import Path

import pytest

from falaj.core.ref import Ref
from falaj.jobs.views import to_calls, to_commands
from tests.jobs.lab import Lab

JOB = Ref("job", "fraud", "train-1")


@pytest.mark.parametrize(
    ("change", "calls", "typed"),
    [
        ({"gpus": "4"}, [("jobs.change", {"job": JOB, "gpus": 4.0})], ["falaj jobs change job:fraud/train-1 --gpus 4"]),
        ({"cpu": "1500", "memory": "2048"}, [("jobs.change", {"job": JOB, "cpus": 1.5, "memory": "2GiB"})],
         ["falaj jobs change job:fraud/train-1 --cpus 1.5 --memory 2GiB"]),
        ({"width": "2", "band": "3"}, [("jobs.change", {"job": JOB, "workers": 2, "band": "high"})],
         ["falaj jobs change job:fraud/train-1 --workers 2 --band high"]),
        ({"not_before": "0"}, [("jobs.change", {"job": JOB})], ["falaj jobs change job:fraud/train-1"]),
        ({"limit:root/a:gpu": "5000"}, [("queues.change", {"name": "root/a", "more": {"limit.gpu": "5"}})],
         ["falaj queues change root/a --more limit.gpu=5"]),
        ({"after": "0f3c"}, [], []),
        ({"after": "job:fraud/a,job:fraud/b"},
         [("jobs.cancel", {"job": "job:fraud/a"}), ("jobs.cancel", {"job": "job:fraud/b"})],
         ["falaj jobs cancel job:fraud/a", "falaj jobs cancel job:fraud/b"]),
        ({"models": "", "level": ""}, [("jobs.loosen", {"job": JOB, "more": {"gpu_model": "any", "topology": "any"}})],
         ["falaj jobs loosen job:fraud/train-1 --more gpu_model=any --more topology=any"]),
        ({"gpus@worker": "2", "cpu@worker": "1500"},
         [("jobs.loosen", {"job": JOB, "more": {"role": "worker", "gpus": "2", "cpus": "1.5"}})],
         ["falaj jobs loosen job:fraud/train-1 --more role=worker --more gpus=2 --more cpus=1.5"]),
        ({"budget:root/a:gpu_s": "3000001"},
         [("queues.change", {"name": "root/a", "more": {"budget.gpu-hours": "+0.834"}})],
         ["falaj queues change root/a --more budget.gpu-hours=+0.834"]),
        ({"open:hall/n1": "hall/n1", "open:far": "far/a,far/b"},
         [("clusters.open", {"node": "hall/n1"}), ("clusters.change", {"name": "far", "more": {"state": "open"}})],
         ["falaj clusters open hall/n1", "falaj clusters change far --more state=open"]),
    ],
)  # fmt: skip
def test_a_fix_as_calls_and_as_commands(
    change: dict[str, str], calls: list[tuple[str, object]], typed: list[str]
) -> None:
    assert list(to_calls(JOB, change.items())) == calls
    assert list(to_commands(JOB, change.items())) == typed


def test_an_attempt_remembers_when_it_was_placed_and_whose_it_is(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    with lab.here, lab.here.working():
        job = lab.done(lab.submit("print(1)"))
    (tried,) = job.attempts
    assert job.submitted_at <= tried.admitted <= tried.started <= tried.ended
    assert (job.person, job.reason) == (job.author, "")
