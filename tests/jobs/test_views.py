"""A fix is the same call whether it is typed or pressed, in the units that people write."""

import pytest

from falaj.core.ref import Ref
from falaj.jobs.views import commands, fixes

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
        ({"models": ""}, [], []),
    ],
)  # fmt: skip
def test_a_fix_as_calls_and_as_commands(
    change: dict[str, str], calls: list[tuple[str, object]], typed: list[str]
) -> None:
    assert list(fixes(JOB, change.items())) == calls
    assert list(commands(JOB, change.items())) == typed
