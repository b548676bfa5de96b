"""The chapter of features: one definition, a training set without a look ahead, and the same numbers online."""

import csv
import random
import time
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.markup import escape

from falaj.demo.access_chapters import DemoChapter
from falaj.demo.stage import DemoStage

PERSON_COUNT, DAY_COUNT, LARGE_PAYMENT = 200, 60, 300.0
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
INPUT_NAMES = ("balance", "sum_amount_7d", "count_1h", "max_amount_30d", "distinct_shop_1d")


def define_features(stage: DemoStage) -> str:
    """Apply, fill, push, build, read."""
    missing_packages = [name for name in ("lmdb", "pyarrow") if find_spec(name) is None]
    if missing_packages:
        stage.say("[yellow]left out: pip install 'falaj\\[features]', then tell this chapter again[/yellow]")
        return f"left out: no {missing_packages[0]}"
    amal = stage.as_("amal", "fraud")
    _publish_accounts(stage, amal)
    definition_file = stage.home / "features.py"
    definition_file.write_text(DEFINITIONS)
    for change in amal.features.apply(str(definition_file)).changes:
        stage.say(f"{change.act:6} [bold]{change.ref}[/bold]")
    materialized = amal.features.materialize("service:fraud/scorer")
    quarantined = amal.features.show("view:fraud/account").quarantined
    stage.say(f"{materialized[0].total:,} rows are online; {quarantined} broke a rule and are kept apart, none is lost")
    push_result = amal.features.push("view:fraud/payments", _make_payments())
    stage.say(f"{push_result.taken:,} payments pushed: durable, then readable, when the call returns")
    history = amal.features.history(
        str(_write_labels(stage.home)), "service:fraud/scorer", name="dataset:fraud/train", moment="at"
    )
    for name, status_counts in list(history.found.items())[:3]:
        stage.say(f"[dim]{name:18} {'  '.join(f'{status} {count:,}' for status, count in status_counts.items())}[/dim]")
    stage.say(
        f"a training set of {history.rows:,} rows, nothing in it from "
        f"after its moment → [bold]{history.published}[/bold]"
    )
    stage.made["train"] = history.published
    return _read_online(stage, amal)


def _read_online(stage: DemoStage, amal: Any) -> str:
    entity_keys = {"customer_id": ["c7", "c8", "nobody"]}
    started_at = time.perf_counter()
    feature_rows = amal.features.read("service:fraud/scorer", entity_keys)
    duration_s = time.perf_counter() - started_at
    for row, name in enumerate(entity_keys["customer_id"]):
        shown = [
            (feature_name, feature_rows.columns[feature_name][row], feature_rows.statuses[feature_name][row])
            for feature_name in INPUT_NAMES[:3]
        ]
        values = ", ".join(
            f"{feature_name}={value:.6g}"
            if status == "PRESENT"
            else f"{feature_name} {status.lower().replace('_', ' ')}"
            for feature_name, value, status in shown
        )
        stage.say(f"[cyan]{escape(name):7}[/cyan] {escape(values)}")
    stage.say(
        f"over HTTP, through the guard, in {duration_s * 1000:.1f} ms; the same numbers that the training set has"
    )
    return f"{len(feature_rows.columns)} features by one definition, offline and online"


def _publish_accounts(stage: DemoStage, amal: Any) -> None:
    """Daily balances; some become known late, one in a thousand breaks a rule."""
    rng, folder, start = random.Random(5), stage.home / "accounts", _get_start_day()  # noqa: S311 # nosec B311 - a story
    folder.mkdir()
    with (folder / "accounts.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["customer_id", "day", "loaded_at", "fils", "city"])
        for day in range(DAY_COUNT):
            for person in range(PERSON_COUNT):
                observed_at = start + timedelta(days=day)
                loaded_at = observed_at + timedelta(hours=rng.choice((1, 1, 1, 60)))
                fils = -1 if rng.random() < 0.001 else rng.randrange(1_000_000)
                writer.writerow(
                    [
                        f"c{person}",
                        _format_time(observed_at),
                        _format_time(loaded_at),
                        fils,
                        rng.choice(("Dubai", "Abu Dhabi", "Ajman")),
                    ]
                )
    amal.catalog.publish("dataset:fraud/accounts", str(folder), label="AE-PDPL,sensitive,purpose=fraud")


def _make_payments() -> list[dict[str, Any]]:
    rng, start = random.Random(6), _get_start_day()  # noqa: S311 # nosec B311 - a story
    return [
        {
            "customer_id": f"c{rng.randrange(PERSON_COUNT)}",
            "at": _format_time(start + timedelta(minutes=rng.randrange(DAY_COUNT * 1440))),
            "amount": round(rng.expovariate(0.01), 2),
            "shop": f"s{rng.randrange(50)}",
        }
        for _ in range(4000)
    ]


def _write_labels(home: Path) -> Path:
    """Moments of the past at which somebody said: fraud, or not. It mostly followed a large payment."""
    large_payments = [
        (entry["customer_id"], entry["at"]) for entry in _make_payments() if entry["amount"] > LARGE_PAYMENT
    ]
    rng, start, file = random.Random(7), _get_start_day(), home / "labels.csv"  # noqa: S311 # nosec B311 - a story
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["customer_id", "at", "fraud"])
        for _ in range(2000):
            customer_id, label_time = (
                f"c{rng.randrange(PERSON_COUNT)}",
                start + timedelta(minutes=rng.randrange(5 * 1440, DAY_COUNT * 1440)),
            )
            window_start, window_end = _format_time(label_time - timedelta(days=30)), _format_time(label_time)
            follows_large_payment = any(
                customer_id == entry and window_start < paid_at <= window_end for entry, paid_at in large_payments
            )
            writer.writerow([customer_id, window_end, int(rng.random() < (0.8 if follows_large_payment else 0.05))])
    return file


def _get_start_day() -> datetime:
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=DAY_COUNT)


def _format_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


CHAPTERS = [
    DemoChapter(
        "One definition", "Right at every moment when training, the same numbers when serving.", define_features
    )
]
