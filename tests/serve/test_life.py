"""The life of an endpoint, as changes of its body."""

from falaj.core.context import Actor, CallContext
from falaj.core.ref import Ref
from falaj.serve import endpoint_repository, state_machine


def body(count: int = 3) -> endpoint_repository.RecordFields:
    ctx = CallContext(Actor("amal", "bank"), "home")
    made = endpoint_repository.create_endpoint_body(ctx, "home", Ref.parse("secret:fraud/serve.score"))
    for number in range(1, count + 1):
        made = state_machine.add_revision(made, {"number": number})
    return state_machine.switch_traffic(state_machine.set_target(made, 1), 1, 10.0)


def test_going_back_goes_further_back_each_time() -> None:
    found = state_machine.switch_traffic(state_machine.switch_traffic(body(), 2, 20.0), 3, 30.0)
    assert (found["current"], found["trail"], found["before"]) == (3, [1, 2], 2)
    back = state_machine.switch_traffic(found, 2, 40.0)
    assert (back["current"], back["trail"], back["before"]) == (2, [1], 3)
    assert state_machine.switch_traffic(back, 1, 50.0)["trail"] == []


def test_what_never_worked_is_given_up_and_what_worked_is_tried_on() -> None:
    heading = state_machine.set_target(body(), 2)
    for number in range(state_machine.MAX_FAILED_REPLICAS):
        assert heading["wanted"] == 2
        heading = state_machine.record_trouble(heading, 2, "it cannot be read", 20.0 + number)
    assert heading["wanted"] == heading["current"] == 1
    assert "never became ready" in heading["note"]
    assert heading["trouble"]["2"]["why"] == "it cannot be read"
    current = body()
    for number in range(9):
        current = state_machine.record_trouble(current, 1, "it crashed", 20.0 + number)
    assert current["wanted"] == current["current"] == 1
    assert state_machine.clear_trouble(current, 1)["trouble"] == {}


def test_the_next_try_is_at_once_and_then_later_each_time() -> None:
    waits = [state_machine.next_try_at({"fails": fails, "at": 0.0}) for fails in range(1, 12)]
    assert waits[0] == 0.0
    assert waits == sorted(waits)
    assert waits[-1] == state_machine.MAX_RETRY_PAUSE_S
    assert state_machine.next_try_at(None) == 0.0


def test_old_revisions_go_but_never_one_that_is_needed() -> None:
    found = body(1)
    for number in range(2, 3 * state_machine.MAX_REVISIONS):
        found = state_machine.add_revision(found, {"number": number})
    numbers = [one["number"] for one in found["revisions"]]
    assert len(numbers) == state_machine.MAX_REVISIONS
    assert numbers[0] == 1
    assert state_machine.next_revision_number(found) == 3 * state_machine.MAX_REVISIONS
