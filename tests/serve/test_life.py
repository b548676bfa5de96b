"""The life of an endpoint, as changes of its body."""

from falaj.core.context import Actor, Context
from falaj.core.ref import Ref
from falaj.serve import books, life


def body(count: int = 3) -> books.Body:
    ctx = Context(Actor("amal", "bank"), "home")
    made = books.new_endpoint(ctx, "home", Ref.parse("secret:fraud/serve.score"))
    for number in range(1, count + 1):
        made = life.revised(made, {"number": number})
    return life.switched(life.heading(made, 1), 1, 10.0)


def test_going_back_goes_further_back_each_time() -> None:
    found = life.switched(life.switched(body(), 2, 20.0), 3, 30.0)
    assert (found["current"], found["trail"], found["before"]) == (3, [1, 2], 2)
    back = life.switched(found, 2, 40.0)
    assert (back["current"], back["trail"], back["before"]) == (2, [1], 3)
    assert life.switched(back, 1, 50.0)["trail"] == []


def test_what_never_worked_is_given_up_and_what_worked_is_tried_on() -> None:
    heading = life.heading(body(), 2)
    for number in range(life.GIVE_UP):
        assert heading["wanted"] == 2
        heading = life.troubled(heading, 2, "it cannot be read", 20.0 + number)
    assert heading["wanted"] == heading["current"] == 1
    assert "never became ready" in heading["note"]
    assert heading["trouble"]["2"]["why"] == "it cannot be read"
    current = body()
    for number in range(9):
        current = life.troubled(current, 1, "it crashed", 20.0 + number)
    assert current["wanted"] == current["current"] == 1
    assert life.calmed(current, 1)["trouble"] == {}


def test_the_next_try_is_at_once_and_then_later_each_time() -> None:
    waits = [life.rests_until({"fails": fails, "at": 0.0}) for fails in range(1, 12)]
    assert waits[0] == 0.0
    assert waits == sorted(waits)
    assert waits[-1] == life.LONGEST_REST_S
    assert life.rests_until(None) == 0.0


def test_old_revisions_go_but_never_one_that_is_needed() -> None:
    found = body(1)
    for number in range(2, 3 * life.MOST_REVISIONS):
        found = life.revised(found, {"number": number})
    numbers = [one["number"] for one in found["revisions"]]
    assert len(numbers) == life.MOST_REVISIONS
    assert numbers[0] == 1
    assert life.next_number(found) == 3 * life.MOST_REVISIONS
