"""The demo project: a small dataset, an experiment with three curves, and a job; by the same verbs that people use."""

import math
import random
import tempfile
import time
from pathlib import Path

from falaj.console.page import build_url
from falaj.console.page_view import PageView
from falaj.core.errors import Conflict
from falaj.core.ref import Ref
from falaj.server import LocalClient
from falaj.track.records import Metric

DEMO_DATASET, DEMO_EXPERIMENT, DEMO_JOB = (
    Ref.parse(ref_text) for ref_text in ("dataset:demo/payments", "experiment:demo/first", "job:demo/count")
)
REQUIRED_PERMISSIONS = (("catalog.begin", DEMO_DATASET), ("track.create", DEMO_EXPERIMENT), ("jobs.add", DEMO_JOB))
"""What whoever makes it must be allowed."""
LEARNING_RATES, NUM_STEPS, NUM_ROWS = (0.01, 0.05, 0.2), 60, 400
COUNT_PROGRAM = '''"""Count the payments of the demo by city."""
import collections, csv, os, pathlib

rows = csv.DictReader(pathlib.Path(os.environ["FALAJ_INPUT_DATA"], "payments.csv").open())
for city, count in collections.Counter(row["city"] for row in rows).most_common():
    print(f"{city}: {count} payments")
'''


def make(view: PageView) -> str:
    """Make it as the reader; what is there already stays as it is. Gives where to look first."""
    client = LocalClient(view.here.house, view.actor, view.here.purpose)
    with tempfile.TemporaryDirectory(prefix="falaj-demo-") as folder:
        _publish_dataset(client, Path(folder, "payments"))
        if not client.track.list(experiments=(), project=DEMO_EXPERIMENT.project, limit=1).runs:
            _track_runs(client)
        _submit_job(client, Path(folder, "code"))
    return build_url("")


_CITIES = ("Dubai", "Abu Dhabi", "Sharjah")


def _publish_dataset(client: LocalClient, folder: Path) -> None:
    folder.mkdir()
    random_source = random.Random(7)  # noqa: S311 # nosec B311 - made-up payments, the same for everybody
    rows = [
        f"{row_number},{random_source.lognormvariate(4, 0.8):.2f},{random_source.choice(_CITIES)},{fraud:d}"
        for row_number, fraud in enumerate(index % 9 == 0 for index in range(NUM_ROWS))
    ]
    (folder / "payments.csv").write_text("\n".join(("id,amount,city,fraud", *rows)), encoding="utf-8")
    client.catalog.publish(DEMO_DATASET, str(folder), message="made-up payments")


def _track_runs(client: LocalClient) -> None:
    """Three runs that differ in one parameter, so that there is something to compare."""
    client.track.create(DEMO_EXPERIMENT, "Which rate learns best?")
    now = time.time()
    for number, rate in enumerate(LEARNING_RATES):
        began_at = now - 600 + 180 * number
        run = client.track.start(DEMO_EXPERIMENT, f"rate {rate}", {"demo": "yes"}, {"rate": str(rate)}, began_at).ref
        points = (
            Metric(key, value, began_at + 2 * step, step)
            for step in range(NUM_STEPS)
            for key, value in (("loss", _compute_loss(rate, step)), ("accuracy", 1 - _compute_loss(rate, step) / 2))
        )
        client.track.log(run, tuple(points))
        client.track.end(run, "finished", began_at + 2 * NUM_STEPS)


def _compute_loss(rate: float, step: int) -> float:
    """A curve as training gives it: the middle rate falls well, the large one trembles."""
    noise = 0.08 * math.sin(step * 1.7) * rate * 5
    return 0.08 + 0.9 * math.exp(-step * min(rate, 0.06)) + abs(noise)


def _submit_job(client: LocalClient, folder: Path) -> None:
    folder.mkdir()
    (folder / "count.py").write_text(COUNT_PROGRAM, encoding="utf-8")
    try:
        client.jobs.submit(
            str(folder / "count.py"),
            name=DEMO_JOB.name,
            project=DEMO_JOB.project,
            cpus=0.1,
            memory="64MiB",
            inputs={"data": DEMO_DATASET},
        )
    except Conflict:
        return  # made before
