"""Hooks end to end: what is told, signed, tried again, given up, and never told."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.errors import Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.flows.webhook_delivery import HOOK_TIMEOUT_S, compute_pause_s
from falaj.flows.webhook_signatures import STYLE_STANDARD, verify_webhook_signature
from falaj.flows.webhooks import MAX_WAITING
from tests.flows.hooks_ground import HOOK, Telling
from tests.flows.receiver import Receiver, free_port, receiving
from tests.people import enroll
from tests.town import refusal


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Telling]:
    made = Telling(tmp_path_factory.mktemp("hooks") / "town")
    yield made
    made.loop.close()
    made.town.close()


@pytest.fixture
def telling(house: Telling) -> Telling:
    """The same house with no hooks."""
    for one in house.mona.flows.hooks():
        house.mona.flows.unhook(one.ref)
    house.later_s = 0.0
    house.crash()
    house.turn()
    return house


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def hooked(telling: Telling, receiver: Receiver, *events: str) -> None:
    assert telling.mona.flows.hook(HOOK, receiver.url(), events or ("catalog.*",)).secret == ""  # on the shelf already


def test_an_event_is_told_as_a_signed_cloudevent(telling: Telling, receiver: Receiver) -> None:
    made = telling.mona.flows.hook(HOOK, receiver.url(), ("catalog.*",), "model:fraud/*")
    id_ = telling.say(alias="champion", step=3, facts="what was judged")
    telling.say(ref="model:other/m")
    telling.say("track.start")
    telling.until(lambda: len(receiver.got) == 1 and telling.view().sent == 1)
    headers, body, _ = receiver.got[0]
    secret = telling.town.as_("sami").secrets.reveal("secret:fraud/hook-ci")
    assert made.secret == secret
    assert verify_webhook_signature(STYLE_STANDARD, [secret.encode()], headers, body, telling.now()) == id_
    assert headers["content-type"].startswith("application/cloudevents+json")
    said = json.loads(body)
    assert said.pop("time").endswith("+00:00")
    assert said == {
        "specversion": "1.0", "id": id_, "source": "/falaj/falaj", "type": "ae.falaj.catalog.promote",
        "subject": "model:fraud/m@r1", "datacontenttype": "application/json", "data": {"alias": "champion", "step": 3},
    }  # fmt: skip
    telling.turn()
    view = telling.view()
    assert (view.state, view.waiting, view.last, len(receiver.got)) == ("on", 0, "200", 1)
    (sent,) = telling.mona.flows.deliveries(HOOK)
    assert (sent.id, sent.state, sent.outcome, sent.tries) == (id_, "sent", "200", 1)
    log = json.dumps([dict(one.body) for one in telling.town.events()])
    assert secret not in log
    assert receiver.url() not in log


def test_a_rotated_secret_signs_twice(telling: Telling, receiver: Receiver) -> None:
    town = telling.town
    old = town.as_("sami").secrets.reveal("secret:fraud/hook-ci")
    town.as_("sami").secrets.rotate("secret:fraud/hook-ci")
    new = town.as_("sami").secrets.reveal("secret:fraud/hook-ci")
    hooked(telling, receiver)
    telling.say()
    telling.until(lambda: len(receiver.got) == 1)
    headers, body, _ = receiver.got[0]
    for secret in (old, new):
        verify_webhook_signature(STYLE_STANDARD, [secret.encode()], headers, body, telling.now())
    assert len(headers["webhook-signature"].split()) == 2


def test_failures_are_tried_again_and_a_crash_loses_nothing(telling: Telling, receiver: Receiver) -> None:
    hooked(telling, receiver)
    receiver.answers = [500, 302]
    id_ = telling.say()
    telling.until(lambda: telling.view().last == "500")
    telling.turn()
    assert (telling.view().state, len(receiver.got)) == ("failing", 1)
    telling.crash()
    telling.later_s += 6
    telling.until(lambda: telling.view().last == "302")
    telling.later_s += 11
    telling.until(lambda: telling.view().sent == 1)
    assert receiver.ids == [id_] * 3
    assert telling.view().state == "on"


def test_after_a_day_it_is_dead_kept_and_can_be_sent_again(telling: Telling, receiver: Receiver) -> None:
    hooked(telling, receiver)
    receiver.answers = [503, 503]
    id_ = telling.say()
    telling.until(lambda: telling.view().last == "503")
    telling.later_s += 86_401
    telling.until(lambda: telling.view().dead == 1)
    (dead,) = telling.mona.flows.deliveries(HOOK, state="dead")
    assert (dead.id, dead.state, dead.tries) == (id_, "dead", 2)
    telling.mona.flows.redeliver(HOOK)
    telling.until(lambda: telling.view().sent == 1)
    assert telling.view().dead == 0
    telling.mona.flows.redeliver(HOOK, id_)  # one that arrived, once more
    telling.until(lambda: telling.view().sent == 2)
    assert set(receiver.ids) == {id_}
    assert isinstance(refusal(lambda: telling.mona.flows.redeliver(HOOK, "no-such")), NotFound)


def test_who_says_gone_is_told_no_more(telling: Telling, receiver: Receiver) -> None:
    hooked(telling, receiver)
    receiver.answers = [410]
    telling.say()
    telling.until(lambda: telling.view().state == "off")
    telling.say()
    telling.later_s += 86_400
    telling.turn()
    assert len(receiver.got) == 1
    assert "gone" in telling.view().note
    telling.mona.flows.redeliver(HOOK)
    telling.until(lambda: telling.view().sent == 1)


def test_who_takes_nothing_for_days_is_switched_off(telling: Telling) -> None:
    telling.mona.flows.hook(HOOK, f"http://127.0.0.1:{free_port()}/", ("catalog.*",))
    telling.say()
    telling.until(lambda: telling.view().state == "failing")
    telling.later_s += HOOK_TIMEOUT_S + 1
    telling.until(lambda: telling.view().state == "off")


def test_an_owner_is_told_only_of_what_they_may_see_then(telling: Telling, receiver: Receiver) -> None:
    town = telling.town
    fatima = town.as_("fatima")
    town.tokens["lina"] = enroll(fatima, "lina", ("ml-engineer",), projects=("fraud",), jurisdiction="AE")
    hook = Ref.parse("hook:fraud/lina")
    town.as_("lina").flows.hook(hook, receiver.url(), ("catalog.*",))
    telling.say(ref="model:secretive/m")
    seen = telling.say(ref="model:fraud/m")
    telling.until(lambda: telling.view(hook).sent == 1)
    assert receiver.ids == [seen]
    receiver.answers = [500]
    telling.say()
    telling.until(lambda: telling.view(hook).last == "500")
    fatima.people.change("lina", projects=("other",))
    telling.later_s += 100
    telling.until(lambda: telling.view(hook).waiting == 0)
    assert len(receiver.got) == 2
    denied = refusal(lambda: town.as_("amal").flows.hook("hook:fraud/of-amal", receiver.url(), ("*",)))
    assert isinstance(denied, Denied)  # she may put no secret on the shelf; one that is there she may name


def test_what_waits_for_a_suspended_owner_is_sent_when_the_suspension_is_lifted(
    telling: Telling, receiver: Receiver
) -> None:
    town, hook = telling.town, Ref.parse("hook:fraud/rest")
    fatima = town.as_("fatima")
    town.tokens["rest"] = enroll(fatima, "rest", ("ml-engineer",), projects=("fraud",), jurisdiction="AE")
    town.as_("rest").flows.hook(hook, receiver.url(), ("catalog.*",))
    receiver.answers = [500]
    id_ = telling.say()
    telling.until(lambda: telling.view(hook).last == "500")
    fatima.people.suspend("rest")
    for _ in range(3):
        telling.later_s += 100
        telling.turn()
    assert (telling.view(hook).waiting, len(receiver.got)) == (1, 1)
    fatima.people.resume("rest")
    telling.later_s += 100
    telling.until(lambda: telling.view(hook).sent == 1)
    assert receiver.ids == [id_, id_]


def test_a_ping_arrives_and_nothing_is_told_of_telling(telling: Telling, receiver: Receiver) -> None:
    hooked(telling, receiver, "*")
    telling.mona.flows.ping(HOOK)
    telling.until(lambda: telling.view().sent == 2)  # and the look at its secret when it was made
    for _ in range(5):
        telling.turn()
    told = [json.loads(body)["type"] for _, body, _ in receiver.got]
    assert sorted(told) == ["ae.falaj.flows.ping", "ae.falaj.secrets.use"]


BAD = ["http://10.0.0.1/x", "https://u:p@a.example/", "https://a.example/?api_key=abcdefghijkl", "mailto:a@b.example"]


@pytest.mark.parametrize("url", BAD)
def test_what_cannot_be_a_hook_is_said_at_once(telling: Telling, url: str) -> None:
    assert isinstance(refusal(lambda: telling.mona.flows.hook(HOOK, url, ("*",))), Invalid)


def test_it_tells_over_postgresql(postgres_url: str, tmp_path: Path, receiver: Receiver) -> None:
    telling = Telling(tmp_path / "town", store=postgres_url)
    telling.turn()
    telling.mona.flows.hook(HOOK, receiver.url(), ("catalog.*",))
    receiver.answers = [500]
    id_ = telling.say()
    telling.until(lambda: telling.view().last == "500")
    telling.crash()
    telling.later_s += 6
    telling.until(lambda: telling.view().sent == 1)
    assert receiver.ids == [id_] * 2
    telling.loop.close()
    telling.town.close()


def test_pauses_double_spread_and_end() -> None:
    assert all(2.5 <= compute_pause_s(1) <= 5 for _ in range(20))
    assert all(20 <= compute_pause_s(4) <= 40 for _ in range(20))
    assert all(3 * 3600 <= compute_pause_s(99) <= 6 * 3600 for _ in range(20))
    assert len({compute_pause_s(3) for _ in range(20)}) > 10


def test_many_that_wait_for_nobody_cost_one_attempt_at_a_time(telling: Telling) -> None:
    telling.mona.flows.hook(HOOK, f"http://127.0.0.1:{free_port()}/", ("catalog.*",))
    telling.turn()
    with telling.ledger.write(telling.ctx("mona")) as tx:
        thing = tx.put(Ref.parse("model:fraud/flood"), {})
        for _ in range(1200):
            tx.emit("catalog.promote", thing.ref)
    telling.until(lambda: telling.view().waiting == 1200 and telling.view().state == "failing")
    tried = len(telling.town.events(verb="flows.deliver"))
    for _ in range(50):
        telling.turn()
    assert len(telling.town.events(verb="flows.deliver")) == tried  # held: nothing is sent, read or written
    assert MAX_WAITING == 10_000
