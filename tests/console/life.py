"""A small but complete life for the console to show: three days of a bank's fraud team, by real verbs on a real house.

Every verb is called at the moment that the story says (`Story.as_(…)` sets the clock of the call): pages have a past.
Nothing runs afterwards: jobs that ran have run, the running one stays running, and replicas are stand-ins.
"""

import csv
import json
import random
import shutil
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from falaj.core.context import Actor, CallContext
from falaj.server import LocalClient, Server
from tests.town import LABEL, Town

HOUR, DAY = 3600.0, 86400.0
DATA, MODEL, SCORING = "dataset:fraud/transactions", "model:fraud/scorer", "experiment:fraud/scoring"
SAID = ("the first", "more steps", "with cities")
CITIES = ("Dubai", "Abu Dhabi", "Sharjah", "Ajman", "العين")
CARD = """# Scorer of card payments

Says how likely a payment is **fraud**. Trained on `transactions`; do not use it for lending.

- inputs: amount, hour of the day, distance from home
- owner: the fraud team
"""
TRAIN = '''"""Trains, in a moment: a falling loss, some words, and a figure of progress."""
import sys, time
from falaj import worker

here = worker.attempt()
for step in range(1, 31):
    here.metric("loss", 1 / (1 + step / 5), step)
    here.progress(step, 30)
print("read 600 rows of transactions")
print("epoch 1: loss 0.14; epoch 2: loss 0.12", flush=True)
'''
FAILS = """import sys
print("read 600 rows of transactions", flush=True)
print("Traceback (most recent call last):\\n  ...\\nValueError: 3 amounts are no numbers", file=sys.stderr)
sys.exit(3)
"""
LASTS = """import time
from falaj import worker

here = worker.attempt()
for step in range(1, 11):
    here.metric("loss", 1 / step, step)
    here.progress(step, 40)
print("epoch 1 of 4", flush=True)
time.sleep(4)  # by then nobody listens any more: for the platform it runs
"""


class _Then:
    """The house, for which it is another moment."""

    def __init__(self, house: Server, at: float) -> None:
        self._house, self._at = house, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._house, name)

    def context(self, actor: Actor, **options: Any) -> CallContext:
        """As the house makes it, with the clock of then."""
        return replace(self._house.context(actor, **options), now=lambda: self._at)


class Story:
    """`story.as_("amal", ago=2 * DAY)` is the platform as amal saw it two days ago."""

    def __init__(self, home: Path, now: float | None = None) -> None:
        self.home, self.now = home, now or time.time()
        # Not below `home`: a folder that a repository ignores is published without its files.
        self.made = Path(tempfile.mkdtemp(prefix="falaj-story-"))
        # Stand-ins lie among the tests, which a cage would not show to a tenant's job.
        self.town = Town(home, sandbox="off")
        self.house = self.town.house

    def as_(self, name: str, ago: float = 0.0, purpose: str = "fraud") -> Any:
        """A person at a moment."""
        then: Any = _Then(self.house, self.now - ago)
        return LocalClient(then, self.town.actor(name), purpose)

    def close(self) -> None:
        """The house is closed, and what it was made from goes."""
        self.house.close()
        shutil.rmtree(self.made)

    def folder(self, name: str, **files: str) -> str:
        """A folder with these files; `card_json` is card.json."""
        made = self.made / name
        made.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (made / file.replace("_", ".", 1)).write_text(text)
        return str(made)


def transactions(story: Story) -> None:
    """Three versions: the second corrects rows, the third has a new column."""
    for number, (ago, message) in enumerate(
        ((3 * DAY, "three weeks of payments"), (2 * DAY, "amounts of June corrected"), (DAY, "with the city")), 1
    ):
        dice, folder = random.Random(number > 1), Path(story.folder(f"transactions-{number}"))
        with (folder / "transactions.csv").open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["id", "customer_id", "at", "amount", "night", "fraud", *(["city"] if number == 3 else [])])
            for row in range(600):
                amount, night = dice.randrange(10, 4000), dice.randrange(2)
                at = datetime.fromtimestamp(story.now - 30 * DAY + row * 3000, UTC).isoformat()
                more = [dice.choice(CITIES)] if number == 3 else []
                out.writerow([row, f"c{row % 40}", at, amount, night, int(amount / 1000 + night > 3.6), *more])
        story.as_("amal", ago).catalog.publish(
            DATA, str(folder), label=LABEL, message=message, columns={"customer_id": "personal"}
        )
    amal = story.as_("amal", DAY)
    amal.catalog.describe(DATA, "Card payments of the bank, one row each.", {"team": "fraud"})
    amal.catalog.publish("dataset:fraud/customers", story.folder("customers", customers_csv="id,name\n1,Noura\n"))


def models(story: Story) -> None:
    """Three versions: one in production, one in staging, one that waits for other eyes."""
    from tests.console.life_rooms import profiled
    from tests.infer.models import mlp

    code = story.folder("training", train_py=TRAIN)
    story.as_("salem", 3 * DAY).catalog.require(
        "gate:fraud/production", ("accuracy >= current", "signature", "1 approvals")
    )
    for number, ago in ((1, 2.9 * DAY), (2, 1.9 * DAY), (3, 5 * HOUR)):
        folder = mlp(story.made / f"scorer-{number}", seed=number)
        (folder / "README.md").write_text(CARD)
        profiled(folder)
        amal = story.as_("amal", ago)
        made = amal.catalog.publish(
            MODEL, str(folder), inputs={"data": f"{DATA}@v{number}"}, code=code, command="python train.py",
            params={"steps": str(number * 100), "rate": "0.05"}, message=SAID[number - 1],
            metrics={"accuracy": 0.9 + number / 50, "auc": 0.93 + number / 100},
        ).ref  # fmt: skip
        amal.catalog.attest(made, "bias", True, {"report": "no group differs by more than 2 %"}, {"gap": 0.017})
        wish = amal.catalog.promote(made, "production", reason="better on the same data")
        if number == 1:
            story.as_("badr", ago - HOUR).approvals.give(str(wish.approval), wish.digest, "looked at the report")
            story.as_("amal", ago - 2 * HOUR).catalog.promote(made, "production")
        elif number == 2:
            story.as_("badr", ago - HOUR).approvals.give(str(wish.approval), wish.digest)
            story.as_("amal", ago - 2 * HOUR).catalog.promote(made, "production")
            story.as_("amal", ago - 9 * HOUR).catalog.rollback(MODEL, reason="complaints from customers")


def runs(story: Story) -> None:
    """Eight runs of an experiment, each with curves."""
    from falaj.track.records import Metric

    amal = story.as_("amal", 2 * DAY)
    amal.track.create(SCORING, "Which rate scores best?", {"mlflow.note.content": "Rates from *low* to high."})
    for number in range(8):
        ago = 2 * DAY - number * HOUR
        here, began = story.as_("amal", ago), story.now - ago
        dice = random.Random(number)
        run = here.track.start(
            SCORING, f"rate {number}", {"team": "fraud", "note": f"try {number}"},
            {"rate": f"{0.01 * 2**number:.4g}", "width": str(32 << number % 3), "seed": str(number)}, began,
            f"{number:032x}", {"data": f"{DATA}@v{number % 3 + 1}"},
        ).ref  # fmt: skip
        points = [
            Metric(key, value + dice.gauss(0, 0.01), began + step * 10, step)
            for step in range(60)
            for key, value in (("loss", 0.2 + 2.0 ** (-step / (4 + number))), ("accuracy", 0.96 - 0.5 / (step + 1)))
        ]
        here.track.log(run, tuple(points))
        if number != 7:
            later = story.as_("amal", ago - HOUR / 2)
            later.track.end(run, "failed" if number == 5 else "finished", began + 600 + 60 * number)
    here.track.attach(f"run:fraud/{0:032x}", "report.md", CARD.encode())
    here.track.attach(f"run:fraud/{0:032x}", "plots/loss.json", json.dumps([1, 0.5, 0.2]).encode())


def jobs(story: Story) -> None:
    """Queues, a cluster with imitated GPUs, and five jobs; run by `settle`."""
    admin = story.as_("admin", 3 * DAY)
    admin.clusters.change("local", {"tenants": "bank,clinic"})
    hall = "process:?nodes=2&cpus=2000&memory=4096&gpus=4&model=H100"
    admin.clusters.add("hall", hall, more={"tenants": "bank,clinic"})
    admin.queues.add("root/bank", guarantee={"gpu": "4", "cpu": "2"}, projects=("bank/*",))
    admin.queues.add("root/clinic", guarantee={"gpu": "4"}, projects=("clinic/*",))
    submit(story, "train-1", TRAIN, cluster="local", inputs={"data": f"{DATA}@v1"})
    submit(story, "train-2", FAILS, cluster="local", inputs={"data": f"{DATA}@v3"})
    submit(story, "train-3", TRAIN, gpus=2, gpu_model=("B200",))
    submit(story, "train-5", TRAIN, gpus=6, cluster="hall")


def submit(story: Story, name: str, text: str, **more: Any) -> None:
    """A small job of amal's."""
    folder = story.folder(f"code-{name}", train_py=text)
    words = {"project": "fraud", "cpus": 0.1, "memory": "100MiB"} | more
    story.as_("amal").jobs.submit(f"{folder}/train.py", name=name, **words)


def lasting(story: Story) -> None:
    """The job that runs for ever: the last that is asked for, since it ends soon without anybody knowing."""
    submit(story, "train-4", LASTS, gpus=2, cluster="hall", steps=40)
