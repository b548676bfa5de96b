"""The chapter of features: one definition, a training set without a look ahead, and the same numbers online."""

import csv
import random
import time
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.markup import escape

from falaj.demo.ground import Chapter
from falaj.demo.stage import Stage

PEOPLE, DAYS, LARGE = 200, 60, 300.0
DEFINITIONS = '''"""Features of the bank's customers, for training and for serving."""
from falaj.features import Entity, Feature, Rule, Service, Source, Window, col, view

customer = Entity("fraud/customer", keys={"customer_id": "string"}, subject="customer_id", about="A person with an account")
account = view(
    "fraud/account", customer, Source("dataset:fraud/accounts", event="day", created="loaded_at"), ttl="45d",
    owner="amal", about="What the bank knows of an account, day by day",
    features=[Feature("balance", "float64", col("fils") / 100), Feature("city", "string")],
    rules=[Rule.range("balance", low=0), Rule.not_null("city")],
)
payments = view(
    "fraud/payments", customer, Source("push", event="at"), owner="amal", about="Payments as they happen",
    features=[Feature("amount", "float64"), Feature("shop", "string")],
    windows=[Window("sum", "amount", "7d"), Window("count", over="1h"), Window("max", "amount", "30d"), Window("distinct", "shop", "1d")],
)
scorer = Service("fraud/scorer", [account["balance"], payments], owner="amal", about="What the scorer asks for")
'''  # noqa: E501
INPUTS = ("balance", "sum_amount_7d", "count_1h", "max_amount_30d", "distinct_shop_1d")


def define(stage: Stage) -> str:
    """Apply, fill, push, build, read."""
    lacking = [name for name in ("lmdb", "pyarrow") if find_spec(name) is None]
    if lacking:
        stage.say("[yellow]left out: pip install 'falaj\\[features]', then tell this chapter again[/yellow]")
        return f"left out: no {lacking[0]}"
    amal = stage.as_("amal", "fraud")
    _publish_accounts(stage, amal)
    file = stage.home / "features.py"
    file.write_text(DEFINITIONS)
    for change in amal.features.apply(str(file)).changes:
        stage.say(f"{change.act:6} [bold]{change.ref}[/bold]")
    filled = amal.features.materialize("service:fraud/scorer")
    kept = amal.features.show("view:fraud/account").quarantined
    stage.say(f"{filled[0].total:,} rows are online; {kept} broke a rule and are kept apart, none is lost")
    done = amal.features.push("view:fraud/payments", _payments())
    stage.say(f"{done.taken:,} payments pushed: durable, then readable, when the call returns")
    made = amal.features.history(
        str(_labels(stage.home)), "service:fraud/scorer", name="dataset:fraud/train", moment="at"
    )
    for name, found in list(made.found.items())[:3]:
        stage.say(f"[dim]{name:18} {'  '.join(f'{status} {count:,}' for status, count in found.items())}[/dim]")
    stage.say(
        f"a training set of {made.rows:,} rows, nothing in it from after its moment → [bold]{made.published}[/bold]"
    )
    stage.made["train"] = made.published
    return _read(stage, amal)


def _read(stage: Stage, amal: Any) -> str:
    who = {"customer_id": ["c7", "c8", "nobody"]}
    began = time.perf_counter()
    found = amal.features.read("service:fraud/scorer", who)
    took = time.perf_counter() - began
    for row, name in enumerate(who["customer_id"]):
        shown = [(one, found.columns[one][row], found.statuses[one][row]) for one in INPUTS[:3]]
        values = ", ".join(
            f"{one}={value:.6g}" if status == "PRESENT" else f"{one} {status.lower().replace('_', ' ')}"
            for one, value, status in shown
        )
        stage.say(f"[cyan]{escape(name):7}[/cyan] {escape(values)}")
    stage.say(f"over HTTP, through the guard, in {took * 1000:.1f} ms; the same numbers that the training set has")
    return f"{len(found.columns)} features by one definition, offline and online"


def _publish_accounts(stage: Stage, amal: Any) -> None:
    """Daily balances; some become known late, one in a thousand breaks a rule."""
    rng, folder, start = random.Random(5), stage.home / "accounts", _start()  # noqa: S311 # nosec B311 - a story
    folder.mkdir()
    with (folder / "accounts.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["customer_id", "day", "loaded_at", "fils", "city"])
        for day in range(DAYS):
            for person in range(PEOPLE):
                when = start + timedelta(days=day)
                known = when + timedelta(hours=rng.choice((1, 1, 1, 60)))
                fils = -1 if rng.random() < 0.001 else rng.randrange(1_000_000)
                out.writerow(
                    [f"c{person}", _said(when), _said(known), fils, rng.choice(("Dubai", "Abu Dhabi", "Ajman"))]
                )
    amal.catalog.publish("dataset:fraud/accounts", str(folder), label="AE-PDPL,sensitive,purpose=fraud")


def _payments() -> list[dict[str, Any]]:
    rng, start = random.Random(6), _start()  # noqa: S311 # nosec B311 - a story
    return [
        {
            "customer_id": f"c{rng.randrange(PEOPLE)}",
            "at": _said(start + timedelta(minutes=rng.randrange(DAYS * 1440))),
            "amount": round(rng.expovariate(0.01), 2), "shop": f"s{rng.randrange(50)}",
        }
        for _ in range(4000)
    ]  # fmt: skip


def _labels(home: Path) -> Path:
    """Moments of the past at which somebody said: fraud, or not. It mostly followed a large payment."""
    large = [(one["customer_id"], one["at"]) for one in _payments() if one["amount"] > LARGE]
    rng, start, file = random.Random(7), _start(), home / "labels.csv"  # noqa: S311 # nosec B311 - a story
    with file.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["customer_id", "at", "fraud"])
        for _ in range(2000):
            who, when = f"c{rng.randrange(PEOPLE)}", start + timedelta(minutes=rng.randrange(5 * 1440, DAYS * 1440))
            since, until = _said(when - timedelta(days=30)), _said(when)
            hit = any(who == one and since < at <= until for one, at in large)
            rows.writerow([who, until, int(rng.random() < (0.8 if hit else 0.05))])
    return file


def _start() -> datetime:
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=DAYS)


def _said(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


CHAPTERS = [Chapter("One definition", "Right at every moment when training, the same numbers when serving.", define)]
