"""Proves the threat-model row "a message that went nowhere counts as delivered": only a status is an answer."""

from collections.abc import Iterator

import pytest

from tests.flows.hooks_ground import HOOK, Telling


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Telling]:
    telling = Telling(tmp_path_factory.mktemp("outcome") / "town")
    yield telling
    telling.loop.close()
    telling.town.close()


def test_refused_address_that_begins_with_2_is_not_marked_sent(telling: Telling) -> None:
    """The text of the refusal begins with the host, and once counted as a status 2xx."""
    telling.mona.flows.hook(HOOK, "https://234.1.1.1/x", ("catalog.*",))
    telling.say()
    telling.until(lambda: telling.view().state == "failing")
    view = telling.view()
    assert (view.sent, view.waiting) == (0, 1)
    assert view.last.startswith("234.1.1.1 is not a place")
    (delivery,) = telling.mona.flows.deliveries(HOOK)
    assert (delivery.state, delivery.outcome) == ("waiting", view.last)
