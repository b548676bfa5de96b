"""The doors: who may ask what, where it goes, and what comes back."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from falaj.serve.records import Rollout
from tests.gateway.stand_in import REF, Ground, Replica

INFER = "/v2/models/fraud.score/infer"
Make = Callable[..., Ground]
Asking = Callable[..., httpx.Client]


def until(holds: Callable[[], Any], within_s: float = 20.0) -> Any:
    """What it gives, once that is something."""
    end = time.monotonic() + within_s
    while not (found := holds()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return found


ANYBODY = {
    ("GET", "/v2"): 401, ("GET", "/v2/health/live"): 200, ("GET", "/v2/health/ready"): 200,
    ("GET", "/v2/models/fraud.score"): 401, ("POST", INFER): 401, ("POST", "/v2/repository/index"): 401,
    ("POST", "/v2/repository/models/fraud.score/load"): 401, ("GET", "/metrics"): 401, ("GET", "/"): 404,
    ("GET", "/v2/models/%2e%2e/ready"): 404, ("POST", "/v2/models/fraud.score/generate"): 501,
    ("GET", INFER): 405, ("DELETE", "/v2/models/fraud.score"): 405, ("OPTIONS", INFER): 405,
    ("GET", "/v2/models/fraud.score/versions/x/ready"): 404, ("GET", "/v2/models/%ff"): 400,
}  # fmt: skip
AMAL = ANYBODY | {
    ("GET", "/v2"): 200, ("GET", "/v2/models/fraud.score"): 200, ("POST", INFER): 200,
    ("POST", "/v2/repository/index"): 200, ("POST", "/v2/repository/models/fraud.score/load"): 403,
    ("GET", "/metrics"): 403, ("GET", "/v2/models/fraud.other"): 404,
    ("GET", "/v2/models/fraud.score/versions/1/ready"): 200,
    ("GET", "/v2/models/fraud.score/versions/2"): 404, ("POST", "/v2/models/fraud.score/versions/1/infer"): 200,
}  # fmt: skip


def test_every_address_is_answered_as_it_should_be_to_everybody(ground: Make, asking: Asking) -> None:
    one = ground()
    for name, table in (("", ANYBODY), ("amal", AMAL)):
        client = asking(one, name)
        for (method, path), status in table.items():
            got = client.request(method, path)
            assert got.status_code == status, (name, method, path, got.text)
            if status >= 400 and method != "HEAD":
                assert list(got.json()) == ["error"]
    index = asking(one).post("/v2/repository/index").json()
    assert index == [{"name": "fraud.score", "version": "1", "state": "READY"}]


def test_what_is_asked_arrives_and_the_answer_names_itself(ground: Make, asking: Asking) -> None:
    one = ground()
    client = asking(one)
    first, second = (client.post(INFER, content=b"hello") for _ in range(2))
    assert first.json()["echo"] == "hello"
    assert first.json()["path"] == INFER
    assert first.headers["falaj-revision"] == "1"
    assert first.headers["falaj-request"] != second.headers["falaj-request"]
    # A path is written anew: what a replica is asked is what was judged.
    assert client.post("/v2/models/fraud%2Escore/infer", content=b"x").json()["path"] == INFER


def test_strangers_and_those_who_may_not_are_refused_and_recorded(ground: Make, asking: Asking) -> None:
    one = ground()
    for name, status in (("sara", 404), ("omar", 403)):
        client = asking(one, name)
        for _ in range(5):
            assert client.post(INFER).status_code == status
    bad = httpx.post(one.doors.http + INFER, headers={"authorization": "Bearer nobody"}, trust_env=False)
    assert bad.status_code == 401
    assert bad.headers["www-authenticate"] == "Bearer"
    denied = [event for event in one.town.events("bank") if event.verb == "guard.deny"]
    assert [event.actor for event in denied] == ["omar"]
    until(lambda: [event for event in one.town.events("house") if event.verb == "guard.deny"])
    assert sum(replica.echo.asked for replica in one.replicas) == 0


def test_callers_are_recorded_once_however_often_they_call(ground: Make, asking: Asking) -> None:
    one = ground()
    client = asking(one)
    for _ in range(50):
        assert client.post(INFER).status_code == 200
    entered = [event for event in one.town.events("bank") if event.verb == "serve.enter"]
    assert [(event.actor, str(event.subject.bare)) for event in entered] == [("amal", str(REF))]


def test_a_token_that_was_taken_away_works_a_second_longer_at_most(ground: Make, asking: Asking) -> None:
    one = ground()
    client = asking(one)
    assert client.post(INFER).status_code == 200
    one.town.as_("fatima").people.suspend("amal")
    until(lambda: client.post(INFER).status_code in (401, 403, 404), 5)


def test_unknown_tokens_are_slowed_down(ground: Make) -> None:
    one = ground()
    with httpx.Client(base_url=one.doors.http, trust_env=False) as client:
        told = [
            client.post(INFER, headers={"authorization": f"Bearer nobody{number}"}).status_code for number in range(40)
        ]
    assert told[0] == 401
    assert told[-1] == 429


def test_rates_hold_each_caller(ground: Make, asking: Asking) -> None:
    one = ground(per_s=0.5, burst=3)
    amal, mona = asking(one), asking(one, "mona")
    told = [amal.post(INFER) for _ in range(5)]
    assert [reply.status_code for reply in told] == [200, 200, 200, 429, 429]
    assert int(told[-1].headers["retry-after"]) >= 1
    assert mona.post(INFER).status_code == 200


def test_arms_are_sticky_and_counted_and_revisions_can_be_named(ground: Make, asking: Asking) -> None:
    one = ground()
    other = Replica(one.loop, 2, "new")
    one.add(other)
    one.trial(Rollout("ab", {"base": 1, "new": 2}, {"base": 0.5, "new": 0.5}, begun_at=1.0))
    client = asking(one)

    def arm(key: str) -> str:
        return client.post(INFER, headers={"falaj-key": key}).headers["falaj-revision"]

    until(lambda: {arm(f"k{number}") for number in range(20)} == {"1", "2"})
    keys = [f"key-{number}" for number in range(40)]
    assert [arm(key) for key in keys] == [arm(key) for key in keys]
    assert client.post("/v2/models/fraud.score/versions/2/infer").json()["revision"] == 2
    desk = one.town.house.desks["serve"]
    until(lambda: {"base", "new", "direct"} <= set(desk.counts.since("bank", REF, 0.0)))
    assert desk.counts.since("bank", REF, 0.0)["direct"].requests == 1


def test_a_shadow_is_asked_and_nobody_hears_it(ground: Make, asking: Asking) -> None:
    one = ground(sample=1.0)
    shadow = Replica(one.loop, 2, "shadow")
    one.add(shadow)
    one.trial(Rollout("shadow", {"base": 1, "shadow": 2}, {"shadow": 1.0}, begun_at=1.0))
    client = asking(one)
    until(lambda: client.post(INFER, content=b"copy me").json()["revision"] == 1 and shadow.echo.asked)
    desk = one.town.house.desks["serve"]
    rows = until(lambda: [row for row in desk.journal.read("bank", REF) if row.arm == "shadow"])
    assert rows[0].revision == 2
    assert rows[0].request == b"copy me"
    assert until(lambda: desk.counts.since("bank", REF, 0.0).get("shadow")).errors == 0


def test_a_sample_is_kept_with_what_names_it(ground: Make, asking: Asking) -> None:
    one = ground(sample=1.0)
    headers = {"falaj-key": "c1", "inference-header-content-length": "2"}
    told = asking(one).post(INFER, content=b"{}binary", headers=headers)
    desk = one.town.house.desks["serve"]
    (row,) = until(lambda: list(desk.journal.read("bank", REF)))
    assert (row.id, row.key, row.caller, row.status) == (told.headers["falaj-request"], "c1", "amal", 200)
    assert (row.request, row.response, row.encoding) == (b"{}binary", told.content, "binary 2 0")


def test_grpc_goes_the_same_way(ground: Make) -> None:
    one = ground()
    headers = one.headers()
    with triton.InferenceServerClient(one.doors.grpc) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
            client.get_server_metadata()
        assert client.get_server_metadata(headers=headers).name == "falaj"
        index = client.get_model_repository_index(headers=headers)
        assert [(model.name, model.version) for model in index.models] == [("fraud.score", "1")]
        with pytest.raises(InferenceServerException, match="falaj serve deploy"):
            client.load_model("fraud.score", headers=headers)
        with pytest.raises(InferenceServerException, match="NOT_FOUND"):
            client.get_model_metadata("fraud.other", headers=headers)
        with pytest.raises(InferenceServerException, match="PERMISSION_DENIED"):
            client.get_model_metadata("fraud.score", headers=one.headers("omar"))
        assert one.replicas[0].echo.asked == 0


@pytest.mark.parametrize("how", ["json", "grpc", "header"])
def test_sequences_stay_with_one_replica(ground: Make, asking: Asking, how: str) -> None:
    one = ground(replicas=3)
    client = asking(one)
    until(lambda: len({client.post(INFER).json()["replica"] for _ in range(12)}) == 3)
    for replica in one.replicas:
        replica.echo.asked = 0
    if how == "grpc":
        from tests.gateway.raw_grpc import infer

        for _ in range(9):
            infer(one.doors.grpc, one.headers(), "fraud.score", sequence=77)
    else:
        body = b'{"parameters": {"sequence_id": 77}}' if how == "json" else b"{}"
        headers = {"falaj-sequence": "77"} if how == "header" else {}
        for _ in range(9):
            assert client.post(INFER, content=body, headers=headers).status_code == 200
    assert sorted(replica.echo.asked for replica in one.replicas) == [0, 0, 9]


def test_features_that_may_not_be_read_any_more_end_the_answers(ground: Make, asking: Asking) -> None:
    one = ground()
    client = asking(one)
    assert client.post(INFER).status_code == 200
    with one.town.house.ledger.read(one.ctx) as tx:
        kept = tx.need(REF).body["revisions"]
    one.change(revisions=[{**kept[0], "features": "service:fraud/gone@v1"}, *kept[1:]])
    fresh = Replica(one.loop, 1, "fresh")
    one.add(fresh)
    told = until(lambda: (got := client.post(INFER)).status_code == 403 and got)
    assert "features" in told.json()["error"]
    assert fresh.controls == []
