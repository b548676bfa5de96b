"""The demo project: a small dataset, an experiment with three curves, and a job; by the same verbs that people use."""

import math
import random
import tempfile
import time
from pathlib import Path

from falaj.console.page import address
from falaj.console.view import View
from falaj.core.errors import Conflict
from falaj.core.ref import Ref
from falaj.platform import Platform
from falaj.track.records import Metric

DATA, FIRST, JOB = (Ref.parse(one) for one in ("dataset:demo/payments", "experiment:demo/first", "job:demo/count"))
NEEDS = (("catalog.begin", DATA), ("track.create", FIRST), ("jobs.add", JOB))
"""What whoever makes it must be allowed."""
RATES, STEPS, ROWS = (0.01, 0.05, 0.2), 60, 400
COUNT = '''"""Count the payments of the demo by city."""
import collections, csv, os, pathlib

rows = csv.DictReader(pathlib.Path(os.environ["FALAJ_INPUT_DATA"], "payments.csv").open())
for city, count in collections.Counter(row["city"] for row in rows).most_common():
    print(f"{city}: {count} payments")
'''


def make(view: View) -> str:
    """Make it as the reader; what is there already stays as it is. Gives where to look first."""
    here = Platform(view.here.house, view.actor, view.here.purpose)
    with tempfile.TemporaryDirectory(prefix="falaj-demo-") as folder:
        _publish(here, Path(folder, "payments"))
        if not here.track.list(experiments=(), project=FIRST.project, limit=1).runs:
            _track(here)
        _submit(here, Path(folder, "code"))
    return address("")


def _publish(here: Platform, folder: Path) -> None:
    folder.mkdir()
    dice = random.Random(7)  # noqa: S311 # nosec B311 - made-up payments, the same for everybody
    rows = [f"{n},{dice.lognormvariate(4, 0.8):.2f},{dice.choice(('Dubai', 'Abu Dhabi', 'Sharjah'))},{n % 9 == 0:d}"
            for n in range(ROWS)]  # fmt: skip
    (folder / "payments.csv").write_text("\n".join(("id,amount,city,fraud", *rows)), encoding="utf-8")
    here.catalog.publish(DATA, str(folder), message="made-up payments")


def _track(here: Platform) -> None:
    """Three runs that differ in one parameter, so that there is something to compare."""
    here.track.create(FIRST, "Which rate learns best?")
    now = time.time()
    for number, rate in enumerate(RATES):
        began = now - 600 + 180 * number
        run = here.track.start(FIRST, f"rate {rate}", {"demo": "yes"}, {"rate": str(rate)}, began).ref
        points = (
            Metric(key, value, began + 2 * step, step)
            for step in range(STEPS)
            for key, value in (("loss", _loss(rate, step)), ("accuracy", 1 - _loss(rate, step) / 2))
        )
        here.track.log(run, tuple(points))
        here.track.end(run, "finished", began + 2 * STEPS)


def _loss(rate: float, step: int) -> float:
    """A curve as training gives it: the middle rate falls well, the large one trembles."""
    shaking = 0.08 * math.sin(step * 1.7) * rate * 5
    return 0.08 + 0.9 * math.exp(-step * min(rate, 0.06)) + abs(shaking)


def _submit(here: Platform, folder: Path) -> None:
    folder.mkdir()
    (folder / "count.py").write_text(COUNT, encoding="utf-8")
    try:
        here.jobs.submit(str(folder / "count.py"), name=JOB.name, project=JOB.project, cpus=0.1, memory="64MiB",
                         inputs={"data": DATA})  # fmt: skip
    except Conflict:
        return  # made before
