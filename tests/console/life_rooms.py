"""The rest of the life: features, an endpoint with a canary, its watch, flows, people's requests, telemetry."""

import json
import math
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from falaj.core.errors import Conflict
from falaj.core.ref import Ref
from falaj.drift.profiles import build_profile, encode_profile
from falaj.drift.records import PROFILE_FILE, DataProfile, ModelQuality
from falaj.drift.tally import DataTally
from falaj.drift.tally_encoding import encode_tally
from falaj.fleet.telemetry_targets import make_node_target, make_pool_target, make_run_target
from falaj.flows.records import STEP_OPERATION, StepPlan
from falaj.jobs.records import FAILED
from falaj.monitor.monitor_loop import MonitorLoop
from falaj.monitor.windows import find_slot_start
from falaj.serve import replica_jobs
from falaj.serve.drift_counts import DriftCountRow
from falaj.serve.request_counts import CountRow, latency_bucket
from falaj.serve.request_journal import JournalRow
from falaj.serve.sealed_blocks import RowOwner
from falaj.store.reconcile_loop import LoopIteration, system_context
from tests.console.life import DATA, DAY, HOUR, MODEL, Story, lasting
from tests.documents import keep_contract
from tests.flows.yard import Yard, function, taken
from tests.serve.laptop import SMALL, STAND_IN
from tests.town import LABEL

ENDPOINT = Ref.parse("endpoint:fraud/scorer")
NUMBERS = ("amount", "hour", "distance_km")
CITIES = ("Dubai", "Abu Dhabi", "Sharjah")
PATIENCE_S = 60.0
Arms = tuple[tuple[str, int], ...]
FEATURES = '''"""What is known of cards, for training and for serving."""
from falaj.features import Entity, Feature, Rule, Service, Source, Window, col, view

card = Entity("fraud/card", keys={"card_id": "string"}, subject="card_id", about="A card of a customer")
stats = view(
    "fraud/card-stats", card, Source("dataset:fraud/cards", event="at"), ttl="45d", owner="amal",
    about="What the bank knows of a card, day by day", tags={"team": "fraud"},
    features=[Feature("balance", "float64", col("fils") / 100), Feature("city", "string")],
    rules=[Rule.range("balance", low=0), Rule.not_null("city")],
)
spent = view(
    "fraud/card-spent", card, Source("push", event="at"), owner="amal", about="Payments as they happen",
    features=[Feature("amount", "float64")], windows=[Window("sum", "amount", "7d"), Window("count", over="1h")],
)
scoring = Service("fraud/scoring", [stats, spent], owner="amal", about="What the scorer asks for")
'''


def columns(rows: int, seed: int, shift: float = 0.0) -> dict[str, Any]:
    """Payments as they come; amounts may grow."""
    rng = np.random.default_rng(seed)
    made: dict[str, Any] = {
        "amount": rng.lognormal(4 + shift, 0.8, rows),
        "hour": rng.normal(14, 4, rows),
        "distance_km": rng.exponential(8, rows),
    }
    made["city"] = rng.choice(np.array(CITIES, object), rows)
    return {**made, "score": 1 / (1 + np.exp(3 - made["amount"] / 60 + rng.normal(0, 0.5, rows)))}


def profile() -> DataProfile:
    """What the scorer was trained on."""
    known = columns(5000, seed=99)
    score = {"score": known.pop("score")}
    tensors = {"x": (*NUMBERS, "city"), "score": ("score",)}
    quality = ModelQuality("binary", {"accuracy": 0.93}, rows=5000)
    return build_profile(known, predictions=score, tensors=tensors, segment="city", quality=quality)


def profiled(folder: Path) -> None:
    """Lay a profile beside a model that is to be published."""
    (folder / PROFILE_FILE).write_bytes(encode_profile(profile()))


def features(story: Story) -> None:
    """A view of a dataset, one that is pushed to, and a service of both."""
    amal, dice = story.as_("amal"), random.Random(5)
    rows = ["card_id,at,fils,city"]
    for day in range(10):
        at = datetime.fromtimestamp(story.now - (10 - day) * DAY, UTC).isoformat()
        rows += [f"k{card},{at},{-1 if card == day else dice.randrange(10**6)},Dubai" for card in range(20)]
    amal.catalog.publish("dataset:fraud/cards", story.folder("cards", cards_csv="\n".join(rows)), label=LABEL)
    file = Path(story.folder("features", features_py=FEATURES), "features.py")
    amal.features.apply(str(file))
    amal.features.materialize("service:fraud/scoring")
    pushed = [
        {"card_id": f"k{n % 20}", "at": datetime.fromtimestamp(story.now - n * 600, UTC).isoformat(), "amount": n * 1.5}
        for n in range(60)
    ]
    amal.features.push("view:fraud/card-spent", pushed)


def serve(story: Story) -> None:
    """The scorer in service since yesterday, and a canary of the version that was rolled back."""
    mona = story.as_("mona", 26 * HOUR)
    mona.serve.deploy(ENDPOINT, f"{MODEL}@v1", message="the first", per_s=50.0, **SMALL)
    story.as_("mona", 3 * DAY).serve.deploy("endpoint:fraud/old", f"{MODEL}@v1", **SMALL)
    story.as_("mona", 2 * DAY).serve.stop("endpoint:fraud/old", reason="replaced by scorer")
    watch(story)
    amal = story.as_("amal", HOUR)
    amal.catalog.promote(f"{MODEL}@v2", "staging", reason="to be tried with a fifth of the traffic")


def watch(story: Story) -> None:
    """Windows of an hour; in the last four, amounts have moved, and it was told."""
    desk, now = story.house.desks["monitor"], story.now
    loop = MonitorLoop(story.house.ledger, desk)
    clock = {"now": now - 25.9 * HOUR}

    def turn(to: float) -> None:
        clock["now"] = to
        ctx = replace(system_context("monitor", "ae-dubai"), now=lambda: clock["now"])
        while loop.step(LoopIteration(ctx, 1, lambda: True)):
            pass

    turn(clock["now"])
    plan = {"every_s": "3600", "least_rows": "200", "segment": "city", "retrain": "flow:fraud/retrain"}
    story.as_("mona", 25.8 * HOUR).monitor.change(ENDPOINT, {name: plan[name] for name in list(plan)[:3]})
    turn(now - 25.7 * HOUR)
    found, digest = (getattr(desk.baselines, name)("bank", ENDPOINT, 1) for name in ("profile", "digest"))
    whose = RowOwner("bank", ENDPOINT, "ae-dubai")
    first = find_slot_start(now - 24 * HOUR, HOUR)
    for number in range(24):
        tally = DataTally(found)
        tally.add(columns(400, seed=number, shift=0.7 if number > 19 else 0.0))
        at = first + number * HOUR + 1800
        desk.serve.sketches.append(
            whose, [DriftCountRow(at - 10, at, 1, "r1-1", number + 1, digest, encode_tally(tally))]
        )
        _counted(story, first + number * HOUR, 60, seed=number)
        turn(first + (number + 1) * HOUR + 900 if number < 23 else now)


def _counted(
    story: Story, since: float, rows: int, seed: int, arms: tuple[tuple[str, int], ...] = (("base", 1),)
) -> None:
    """What a gateway counted, a row a minute."""
    dice, made = random.Random(seed), []
    for minute in range(rows):
        for arm, revision in arms:
            asked = int(40 + 20 * math.sin(minute / 9) + dice.randrange(10)) // (1 if arm == "base" else 4)
            spread = {
                latency_bucket(int(us)): max(1, asked // 4) for us in (700, 900, 1500, 4000 + 100 * dice.randrange(9))
            }
            row = CountRow("bank", str(ENDPOINT), arm, revision, since + minute * 60, asked, asked // 40, spread, 0, 0, "g1", "ae-dubai")  # fmt: skip # noqa: E501
            made.append(row)
    story.house.desks["serve"].counts.append(made)


def traffic(story: Story) -> None:
    """The last half hour of both arms, and some requests that were kept."""
    _counted(story, story.now - 1800, 30, 77, (("base", 1), ("canary", 2)))
    rng, rows = np.random.default_rng(3), []
    for number in range(12):
        asked = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": rng.normal(size=4).tolist()}]}
        said = {"outputs": [{"name": "score", "datatype": "FP32", "shape": [1, 1], "data": [float(rng.random())]}]}
        bodies = json.dumps(asked).encode(), json.dumps(said).encode()
        at, arm = story.now - 1500 + number * 100, ("base", 1) if number % 4 else ("canary", 2)
        rows.append(
            JournalRow(at, f"request-{number}", "", *arm, 500 if number == 5 else 200, 900, "amal", *bodies, "json")
        )
    story.house.desks["serve"].journal.append(RowOwner("bank", ENDPOINT, "ae-dubai"), rows)


def settle(story: Story) -> None:
    """The loops run until jobs have come to what the story wants of them. Replicas are stand-ins that serve nothing."""
    amal, real = story.as_("amal"), replica_jobs.REPLICA_COMMAND
    setattr(replica_jobs, "REPLICA_COMMAND", STAND_IN)  # noqa: B010 - as tests of endpoints do
    over = {"fraud/train-1": "succeeded", "fraud/train-2": "failed", "hostile/noisy": "succeeded"}

    def ready() -> int:
        return sum(one.state == "ready" for one in amal.serve.show(ENDPOINT).replicas)

    try:
        with story.house.working():
            _until(lambda: ready() == 1)
            mona = story.as_("mona", HOUR / 2)
            _until(partial(_canary, mona))
            _until(lambda: all(amal.jobs.show(f"job:{name}").over for name in over))
            assert {name: amal.jobs.show(f"job:{name}").state for name in over} == over
            _until(lambda: ready() == 2 and len(amal.serve.show(ENDPOINT).traffic) == 2)
            lasting(story)
            _until(lambda: "loss" in amal.track.show(amal.jobs.show("job:fraud/train-4").run).metrics)
    finally:
        setattr(replica_jobs, "REPLICA_COMMAND", real)  # noqa: B010


def _canary(mona: Any) -> bool:
    """Once the first revision has the traffic, which is a moment after it is ready."""
    with suppress(Conflict):
        mona.serve.deploy(ENDPOINT, f"{MODEL}@v2", canary="20%", message="more steps")
        return True
    return False


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "the story does not come to its end"
        time.sleep(0.02)


def flows(story: Story) -> None:
    """A retraining that came through, one that failed, one that runs; a schedule, a trigger, a hook."""
    story.as_("amal").catalog.publish("code:fraud/flows", story.folder("flows", f_py="x = 1"))
    yard = Yard(story.town)
    steps = (
        function("prepare", takes={"data": {"param": "data"}}, outputs={"rows": "dataset:fraud/prepared"}),
        function("train", takes={"rows": taken("prepare", "rows")}, outputs={"model": "model:fraud/retrained"}),
        function("validate", takes={"model": taken("train", "model"), "rows": taken("prepare", "rows")}),
        StepPlan(
            "tag",
            STEP_OPERATION,
            entry="catalog.tag",
            takes={"name": taken("train", "model"), "alias": "challenger"},
            when=taken("validate", "better"),
        ),
        function("report", takes={"why": taken("validate", "why")}, always=True),
    )
    run = yard.start("retrain", *steps, params={"data": DATA})
    yard.end("retrain-1.prepare", {"rows": 600}, rows=f"{DATA}@v3")
    yard.turn(run)
    yard.end("retrain-1.train", {"accuracy": 0.95}, model=f"{MODEL}@v3")
    yard.turn(run)
    yard.end("retrain-1.validate", {"better": True, "why": "2.1 points better on 1,000 rows"})
    yard.turn(run)
    yard.end("retrain-1.report", "told")
    yard.turn(run, 2)
    second = yard.turn(yard.me.flows.start("flow:fraud/retrain"))
    yard.end("retrain-2.prepare", state=FAILED, error="ValueError: amount has 3 values that are no numbers")
    yard.turn(second, 2)
    yard.end("retrain-2.report", "told")
    yard.turn(second, 2)
    third = yard.turn(yard.me.flows.start("flow:fraud/retrain", cause="drift of amount"))
    yard.end("retrain-3.prepare", {"rows": 600}, rows=f"{DATA}@v3")
    yard.turn(third)
    amal = story.as_("amal")
    amal.flows.schedule("flow:fraud/retrain", "0 3 * * 5", zone="Asia/Dubai", name="weekly")
    amal.flows.on("flow:fraud/retrain", ("catalog.commit",), subject=f"{DATA}*", name="new-rows")


def govern(story: Story) -> None:
    """A grant that waits for people, one that was refused, a secret, a key that was rotated, somebody suspended."""
    salem = story.as_("salem", 6 * HOUR)
    more, documents = {"expires": "90d"}, keep_contract(salem)
    salem.zones.grant("AE-PDPL:23a", "ae-dubai", "eu-west", DATA, ("fraud",), documents, more)
    refused = salem.zones.grant(
        "AE-PDPL:23a", "ae-dubai", "eu-west", "dataset:fraud/customers", ("fraud",), documents, more
    )
    story.as_("dana", 5 * HOUR).approvals.refuse(str(refused.approval), "nobody there needs the names of customers")
    story.as_("mona", 4 * HOUR).secrets.put("secret:fraud/warehouse", "a made-up password")
    fatima = story.as_("fatima", 2 * HOUR)
    fatima.people.add("noura", ("data-scientist",), jurisdiction="AE")
    fatima.people.suspend("noura")


def telemetry(story: Story) -> None:
    """Two hours of the hall's GPUs, and of the job that runs there."""
    desk, dice = story.house.desks["clusters"], random.Random(4)
    kept, job = desk.telemetry, story.as_("amal").jobs.show("job:fraud/train-4")
    for node in ("hall/node-1", "hall/node-2"):
        for minute in range(120):
            at = story.now - 7200 + minute * 60
            row = {"load": dice.uniform(1, 4), "available": 2000 + dice.uniform(0, 500), "disk": 7e5, "disk_total": 1e6}
            for gpu in range(4):
                busy = max(0.0, dice.gauss(85, 8)) if node == "hall/node-1" and gpu < 2 else dice.uniform(0, 3)
                row |= {
                    f"{gpu}.busy": busy,
                    f"{gpu}.memory": 60_000,
                    f"{gpu}.memory_total": 81_559,
                    f"{gpu}.temperature": 40 + busy / 4,
                    f"{gpu}.power": 90 + busy * 5,
                }
            kept.put(make_node_target(node, "ae-dubai"), at, row, story.now)
            if node == "hall/node-1":
                told = {name: value for name, value in row.items() if name[0] in "01"}
                kept.put(make_run_target("bank", job.run.name, "ae-dubai"), at, told, story.now)
    for hour in range(23):
        held = 1000 * max(0.0, 4 + 3 * math.sin(hour / 4) + dice.uniform(-1, 1))
        load = {"capacity": 8000, "held": held, "waiting": 6000, "empty": 4000, "largest": 4000}
        for pool, share in (("gpu:H100", 1.0), ("cpu", 0.5)):
            told = {name: value * share for name, value in load.items()}
            kept.put(make_pool_target(pool, "ae-dubai"), story.now - hour * HOUR - 30, told, story.now)
    kept.flush()
