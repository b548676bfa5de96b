"""Who asks a model brings only keys: its features are those it was trained on, read now, and the same bits."""

import csv
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from falaj.core.errors import Invalid
from tests.infer.models import _Kit
from tests.jobs.lab import until
from tests.servers.redis import RedisServer
from tests.stories.serving_cluster import engines
from tests.stories.serving_ground import SCORE, SMALL, Platform, platform

DEFINITIONS = '''"""What is known of customers."""
from falaj.features import Entity, Feature, Service, Source, Window, col, view

customer = Entity("fraud/customer", keys={"customer_id": "string"})
account = view(
    "fraud/account", customer, Source("push", event="at"), owner="mona", about="Accounts",
    features=[Feature("balance", "float64", col("fils") / 100)],
)
payments = view(
    "fraud/payments", customer, Source("push", event="at"), owner="mona", about="Payments",
    features=[Feature("amount", "float64")], windows=[Window("sum", "amount", "7d"), Window("count", over="1h")],
)
scorer = Service("fraud/scorer", [account["balance"], payments], owner="mona", about="What the scorer asks for")
'''
FEATURES = ("balance", "sum_amount_7d", "count_1h")
WEIGHTS = np.array([[0.001], [0.01], [0.1]], np.float32)


@pytest.mark.parametrize("ground", ["laptop", pytest.param("cluster", marks=pytest.mark.slow)])
def test_keys_only_request_with_features(request: pytest.FixtureRequest, tmp_path: Path, ground: str) -> None:
    """On a laptop, and on PostgreSQL, S3 and a Redis at which replicas sign in as a reader of their tenant."""
    with ExitStack() as stack:
        settings: dict[str, str] = {}
        if ground == "cluster":
            redis = stack.enter_context(RedisServer(requirepass="very-hidden-1"))
            online = {"FALAJ_ONLINE": f"{redis.url}?password=env:REDIS_PASSWORD", "REDIS_PASSWORD": "very-hidden-1"}
            settings = engines(request, tmp_path) | online
        bank = stack.enter_context(platform(tmp_path, settings))
        here, now = bank.here, datetime.now(UTC).replace(microsecond=0)
        model = trained(bank, tmp_path, now)
        view = here.serve.deploy(SCORE, str(model), wait=True, **SMALL)
        assert str(view.revisions[0].features) == "service:fraud/scorer@v1"
        url = until(bank.show, lambda one: one.url).url
        client = triton.InferenceServerClient(url.partition("//")[2].partition("/")[0])
        try:
            (key,) = client.get_model_metadata(view.name, headers=auth(bank))["inputs"]
            assert (key["name"], key["datatype"]) == ("customer_id", "BYTES")
            asked(bank, client, ["c1", "c2"])
            # What happens now is in the next answer.
            before = float(score(bank, client, ["c1"])[0, 0])
            here.features.push("view:fraud/payments", [{"customer_id": "c1", "at": said(now), "amount": 500.0}])
            after = until(lambda: float(score(bank, client, ["c1"])[0, 0]), lambda found: found != before)
            assert after == pytest.approx(before + 5.0 + 0.1, rel=1e-5)
            asked(bank, client, ["c1", "c2"])
            with pytest.raises(InferenceServerException, match="balance"):
                score(bank, client, ["nobody"])
        finally:
            client.close()
        # One that was made from it was trained on the same.
        child = here.catalog.publish("model:fraud/child", str(tmp_path / "model"), inputs={"parent": model}).ref
        assert [str(one) for one in here.features.bound(child)] == ["service:fraud/scorer@v1"]
        # A model is served with what it was trained on, and nothing else.
        with pytest.raises(Invalid, match="trained on service:fraud/scorer@v1"):
            here.serve.deploy(SCORE, str(model), features="service:fraud/other")
        bank.close()


def trained(bank: Platform, home: Path, now: datetime) -> Any:
    """A model of three features, published with the training set it was made from."""
    here = bank.here
    (home / "features.py").write_text(DEFINITIONS + 'other = Service("fraud/other", [account["balance"]])\n')
    here.features.apply(str(home / "features.py"))
    early = [now - timedelta(hours=hours) for hours in (1, 30, 60)]
    here.features.push(
        "view:fraud/account",
        [{"customer_id": f"c{n}", "at": said(at), "fils": 10_000 * n + at.hour} for n in (1, 2) for at in early],
    )
    here.features.push(
        "view:fraud/payments",
        [{"customer_id": f"c{n}", "at": said(at), "amount": 1.5 * n} for n in (1, 2) for at in early],
    )
    with (home / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["customer_id", "at", "fraud"])
        rows.writerows([["c1", said(now), 1], ["c2", said(now), 0]])
    made = here.features.history(
        str(home / "labels.csv"), "service:fraud/scorer", name="dataset:fraud/train", moment="at"
    )
    kit = _Kit(1)
    kit.add("MatMul", "x", kit._keep(WEIGHTS), out="y")
    folder = kit.save(home / "model", [("x", "FP32", ("batch", 3))], [("y", "FP32", ("batch", 1))])
    return here.catalog.publish("model:fraud/scorer", str(folder), inputs={"train": made.published}).ref


def asked(bank: Platform, client: triton.InferenceServerClient, who: list[str]) -> None:
    """The answer to keys is the model's for the features that anybody reads of them."""
    read = bank.here.features.read("service:fraud/scorer", {"customer_id": who})
    x = np.stack([np.asarray(read.columns[name], np.float64).astype(np.float32) for name in FEATURES], axis=1)
    np.testing.assert_allclose(score(bank, client, who), x @ WEIGHTS, rtol=1e-6)


def score(bank: Platform, client: triton.InferenceServerClient, who: list[str]) -> Any:
    given = triton.InferInput("customer_id", [len(who)], "BYTES")
    given.set_data_from_numpy(np.array(who, object))
    return client.infer("fraud.score", [given], headers=auth(bank)).as_numpy("y")


def auth(bank: Platform) -> dict[str, str]:
    return {"Authorization": f"Bearer {bank.token}"}


def said(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
