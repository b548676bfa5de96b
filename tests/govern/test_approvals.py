"""Approvals: the judgement by tables and over every small town of identities, and the desk on a real ledger."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.govern.approvals import (
    EMERGENCY_PERIOD_S,
    ApprovalService,
    evaluate_approval,
    make_approval_ref,
    with_stricter_rules,
)
from falaj.govern.records import ApprovalQuestion, ApprovalVote
from tests.govern.places import DAY, NOW, Town, town

DIGEST = "sha256:" + "d" * 64
OTHER = "sha256:" + "e" * 64
ASKED = ApprovalQuestion(
    action="catalog.promote", digest=DIGEST, needs=2, dpo=0, roles=("approver", "dpo"), asker="amal",
    barred=("author",), reason="it is good", asked=NOW, expires=NOW + 7 * DAY,
)  # fmt: skip


def voice(person: str, *roles: str, says: str = "give", at: float = 1, **more: str) -> ApprovalVote:
    kind, digest = more.pop("kind", "person"), more.pop("digest", DIGEST)
    return ApprovalVote(says, person, more.pop("actor", person), kind, roles or ("approver",), NOW + at, digest, **more)


def stand(*voices: ApprovalVote, at: float = 60, **asked: object) -> str:
    return evaluate_approval(replace(ASKED, voices=voices, **asked), NOW + at).state


BADR, DANA, EMAN = voice("badr"), voice("dana", "dpo"), voice("eman", at=2)

TABLE = {
    "nobody yet": (stand(), "waiting"),
    "one of two": (stand(BADR), "waiting"),
    "two people": (stand(BADR, EMAN), "granted"),
    "one person twice": (stand(BADR, voice("badr", at=9)), "waiting"),
    "one person by two accounts": (stand(BADR, voice("badr", actor="badr-2")), "waiting"),
    "the asker": (stand(BADR, voice("amal")), "waiting"),
    "the asker by another account": (stand(BADR, voice("amal", actor="amal-2")), "waiting"),
    "the asker's account under another name": (stand(BADR, voice("x", actor="amal")), "waiting"),
    "the author": (stand(BADR, voice("x", actor="author")), "waiting"),
    "a service account": (stand(BADR, voice("robot", kind="service")), "waiting"),
    "a workload": (stand(BADR, voice("run", kind="workload")), "waiting"),
    "a kind nobody knows": (stand(BADR, voice("x", kind="")), "waiting"),
    "on behalf of another": (stand(BADR, voice("x", behalf="eman")), "waiting"),
    "no right role": (stand(BADR, voice("x", "tenant-admin", "security-officer")), "waiting"),
    "another digest": (stand(BADR, voice("eman", digest=OTHER)), "waiting"),
    "before it was asked": (stand(BADR, voice("eman", at=-1)), "waiting"),
    "after it ended": (stand(BADR, voice("eman", at=8 * DAY), at=1), "waiting"),
    "not said yet": (stand(BADR, voice("eman", at=61)), "waiting"),
    "refused by one": (stand(BADR, EMAN, voice("dana", says="refuse")), "refused"),
    "refused first": (stand(voice("dana", says="refuse"), BADR, EMAN), "refused"),
    "its last moment": (stand(BADR, EMAN, at=7 * DAY - 1), "granted"),
    "over": (stand(BADR, EMAN, at=7 * DAY), "expired"),
    "refused stays refused": (stand(voice("dana", says="refuse"), at=8 * DAY), "refused"),
    "no officer": (stand(BADR, EMAN, dpo=1), "waiting"),
    "one officer": (stand(BADR, DANA, dpo=1), "granted"),
    "an officer alone": (stand(DANA, dpo=1), "waiting"),
    "three needed": (stand(BADR, DANA, needs=3), "waiting"),
    "emergency, nobody": (stand(emergency=True), "waiting"),
    "emergency, one": (stand(BADR, emergency=True), "emergency"),
    "emergency, the asker": (stand(voice("amal"), emergency=True), "waiting"),
    "emergency, a robot": (stand(voice("robot", kind="service"), emergency=True), "waiting"),
    "emergency, last moment": (stand(BADR, emergency=True, at=EMERGENCY_PERIOD_S), "emergency"),
    "emergency, a day later": (stand(BADR, emergency=True, at=EMERGENCY_PERIOD_S + 1), "lapsed"),
    "emergency, ratified": (stand(BADR, EMAN, emergency=True, at=3 * DAY), "granted"),
    "emergency, ratified too late": (stand(BADR, voice("eman", at=2 * DAY), emergency=True, at=3 * DAY), "lapsed"),
    "emergency, ratified without its officer": (stand(BADR, EMAN, emergency=True, dpo=1, at=3 * DAY), "lapsed"),
    "emergency, refused": (stand(BADR, voice("dana", says="refuse"), emergency=True), "refused"),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_standing(case: str) -> None:
    found, expected = TABLE[case]
    assert found == expected


def test_what_is_missing_is_said_in_words() -> None:
    assert evaluate_approval(replace(ASKED, dpo=1), NOW).why == "it waits for 2 more people, 1 of the role dpo"
    assert (
        evaluate_approval(replace(ASKED, dpo=1, voices=(BADR, EMAN)), NOW + 9).why == "it waits for 1 of the role dpo"
    )
    hurry = evaluate_approval(replace(ASKED, emergency=True), NOW).why
    assert hurry == "it waits for 2 more people; an emergency: the first of them lets it go on, for 24 hours"
    emergency = evaluate_approval(replace(ASKED, emergency=True, voices=(BADR,)), NOW + 9)
    assert (emergency.ratify, emergency.until) == (True, NOW + 1 + EMERGENCY_PERIOD_S)


def test_four_eyes_over_every_assignment_of_people_to_accounts() -> None:
    """Three accounts speak, each of any of three persons, any kind, with or without the role: count by hand."""
    people, kinds, roles = ("amal", "badr", "eman"), ("person", "service"), ("approver", "data-scientist")
    for spoken in product(product(people, kinds, roles), repeat=3):
        voices = tuple(voice(p, r, kind=k, actor=f"account-{n}", at=n) for n, (p, k, r) in enumerate(spoken))
        good = {p for p, k, r in spoken if k == "person" and r == "approver" and p != "amal"}
        assert (stand(*voices) == "granted") == (len(good) >= 2)


PEOPLE = st.sampled_from(["amal", "badr", "dana", "eman", "author"])
VOICES = st.lists(
    st.builds(
        ApprovalVote,
        says=st.sampled_from(["give", "give", "give", "refuse"]),
        person=PEOPLE,
        actor=PEOPLE,
        kind=st.sampled_from(["person", "person", "service", "workload"]),
        roles=st.sampled_from([("approver",), ("dpo",), ("approver", "dpo"), ("auditor",), ()]),
        at=st.integers(-10, 9 * 86_400).map(lambda s: NOW + s),
        digest=st.sampled_from([DIGEST, DIGEST, DIGEST, OTHER]),
        behalf=st.sampled_from(["", "", "x"]),
    ),
    max_size=6,
).map(tuple)
TIMES = st.integers(0, 9 * 86_400).map(lambda s: NOW + s)
QUESTIONS = st.builds(
    lambda voices, needs, dpo, emergency: replace(ASKED, voices=voices, needs=needs, dpo=dpo, emergency=emergency),
    VOICES, st.integers(1, 3), st.integers(0, 1), st.booleans(),
)  # fmt: skip


@given(QUESTIONS, TIMES)
def test_no_single_human_ever_passes_two(question: ApprovalQuestion, now: float) -> None:
    stood = evaluate_approval(question, now)
    yes = [v for v in question.voices if v.says == "give"]
    if stood.granted:
        assert now < question.expires
        assert len({v.person for v in yes} - {"amal", "author"}) >= question.needs
        assert not any(v.says == "refuse" for v in question.voices)
    if stood.state == "emergency":
        assert question.emergency
        assert stood.until <= now + EMERGENCY_PERIOD_S


@given(QUESTIONS, TIMES)
def test_another_digest_voids_every_voice(question: ApprovalQuestion, now: float) -> None:
    changed = evaluate_approval(replace(question, digest="sha256:" + "f" * 64), now)
    assert changed.given == 0
    assert changed.state in ("waiting", "refused", "expired")


@given(QUESTIONS, TIMES, st.integers(0, 3), st.integers(0, 1))
def test_stricter_rules_never_grant_more(question: ApprovalQuestion, now: float, needs: int, dpo: int) -> None:
    if evaluate_approval(with_stricter_rules(question, ("badr",), needs, dpo), now).granted:
        assert evaluate_approval(question, now).granted


@given(QUESTIONS, TIMES, TIMES)
def test_what_is_over_stays_over(question: ApprovalQuestion, now: float, later: float) -> None:
    heard = replace(question, voices=tuple(v for v in question.voices if v.at <= now))
    if later >= now and evaluate_approval(heard, now).state in ("refused", "expired", "lapsed"):
        assert evaluate_approval(heard, later).state in ("refused", "expired", "lapsed")


# The desk


@pytest.fixture
def place_(tmp_path: Path) -> Iterator[Town]:
    with town(tmp_path) as made:
        yield made


def ask(there: Town, **more: object) -> Ref:
    amal = there.who("amal", "bank", "data-scientist")
    return there.approvals.ask(amal, "catalog.promote", DIGEST, "it is good", **more).ref  # type: ignore[arg-type]


def approver(there: Town, name: str, *roles: str, **more: str) -> CallContext:
    return there.who(name, "bank", *(roles or ("approver",)), **more)


def test_two_people_and_the_room_may_go_on(place_: Town) -> None:
    ref = ask(place_)
    amal = place_.who("amal")
    with pytest.raises(Denied, match="2 more people") as refused:
        place_.approvals.demand(amal, "catalog.promote", DIGEST)
    assert refused.value.hint == f"an approver runs: falaj approvals give {ref}"
    assert place_.approvals.give(approver(place_, "badr"), ref, DIGEST).standing.state == "waiting"
    assert place_.approvals.give(approver(place_, "eman"), ref).standing.state == "granted"
    assert place_.approvals.demand(amal, "catalog.promote", DIGEST).digest == DIGEST
    assert place_.events() == ["approvals.ask", "approvals.give", "approvals.give"]


@pytest.mark.parametrize("skew_s", [0.002, 90.0, 2 * DAY])
def test_replicas_with_other_clocks_agree_on_an_approval(place_: Town, skew_s: float) -> None:
    ref = ask(place_)
    granted: list[Ref] = []
    place_.approvals.on_granted("catalog.promote", lambda _ctx, _tx, _approval: granted.append(ref))
    place_.clock.forward(-skew_s)  # the replica that the approvers call is behind the one that was asked
    place_.approvals.give(approver(place_, "badr"), ref)
    assert place_.approvals.give(approver(place_, "eman"), ref).standing.state == "granted"
    assert granted == [ref]
    assert place_.approvals.demand(place_.who("amal"), "catalog.promote", DIGEST).digest == DIGEST
    assert [approval.ref for approval in place_.approvals.list(place_.who("amal"), state="granted")] == [ref]
    for hours in range(7 * 24 + 49):  # once granted it stays so until it expires
        place_.clock.forward(3600)
        state = place_.approvals.show(place_.who("amal"), ref).standing.state
        assert state == ("granted" if place_.clock.now < NOW + 7 * DAY else "expired"), hours


def test_approval_from_a_replica_that_is_ahead_counts_at_once(place_: Town) -> None:
    ref = ask(place_, needs=1)
    place_.clock.forward(90)
    place_.approvals.give(approver(place_, "badr"), ref)
    place_.clock.forward(-90)
    assert place_.approvals.demand(place_.who("amal"), "catalog.promote", DIGEST, min_approvers=1).digest == DIGEST
    with pytest.raises(Conflict, match="you have approved it already"):
        place_.approvals.give(approver(place_, "badr"), ref)
    assert place_.approvals.give(approver(place_, "eman"), ref).standing.given == 2


def test_nothing_asked_says_what_to_run(place_: Town) -> None:
    with pytest.raises(Denied) as refused:
        place_.approvals.demand(place_.who("amal"), "catalog.promote", DIGEST)
    assert refused.value.hint.startswith(f"falaj approvals ask catalog.promote {DIGEST} --needs 2")


def test_the_approval_is_for_that_digest_action_and_tenant_only(place_: Town) -> None:
    ref = ask(place_)
    for name in ("badr", "eman"):
        place_.approvals.give(approver(place_, name), ref)
    for who, action, digest in (
        ("bank", "catalog.promote", OTHER),
        ("bank", "serve.deploy", DIGEST),
        ("rival", "catalog.promote", DIGEST),
    ):
        with pytest.raises(Denied):
            place_.approvals.demand(place_.who("amal", who), action, digest)


@pytest.mark.parametrize(
    ("name", "roles", "more", "said"),
    [
        ("amal", ("approver",), {}, "whoever asks"),
        ("amal-2", ("approver",), {"subject": "bank/amal"}, "whoever asks"),
        ("robot", ("approver",), {"kind": "service"}, "only people"),
        ("run-7", ("approver",), {"kind": "workload"}, "only people"),
        ("badr", ("approver",), {"behalf": "eman"}, "on behalf"),
        ("badr", ("approver",), {"run": "run-7"}, "of this tenant"),
        ("badr", ("security-officer",), {}, "one of the roles"),
    ],
)
def test_a_voice_that_cannot_count_is_told_so(
    place_: Town, name: str, roles: tuple[str, ...], more: dict[str, str], said: str
) -> None:
    ref = ask(place_)
    with pytest.raises(Denied, match=said):
        place_.approvals.give(approver(place_, name, *roles, **more), ref)
    assert place_.approvals.show(place_.who("amal"), ref).approval.voices == ()


def test_the_author_of_the_thing_has_no_voice(place_: Town) -> None:
    thing = Ref("model", "fraud", "scorer", "v1")
    author = approver(place_, "author")
    with place_.ledger.write(author) as tx:
        tx.put(thing, {})
        tx.emit("publish", thing)
    ref = ask(place_, about=thing)
    with pytest.raises(Denied, match="author"):
        place_.approvals.give(author, ref)


def test_an_author_has_no_second_account(place_: Town) -> None:
    persons = {"author": "idp|7", "author-2": "idp|7"}
    desk = ApprovalService(place_.ledger, lambda tenant, account: persons.get(account, f"{tenant}/{account}"))
    ref = ask(place_)
    desk.give(approver(place_, "badr"), ref)
    desk.give(approver(place_, "author-2", subject="idp|7"), ref)
    assert desk.demand(place_.who("amal"), "catalog.promote", DIGEST)
    with pytest.raises(Denied, match="1 more person"):
        desk.demand(place_.who("amal"), "catalog.promote", DIGEST, authors=("author",))


def test_a_person_speaks_once_and_about_what_was_asked(place_: Town) -> None:
    ref = ask(place_)
    with pytest.raises(Denied, match="another one") as other:
        place_.approvals.give(approver(place_, "badr"), ref, OTHER)
    assert "falaj approvals show" in other.value.hint
    place_.approvals.give(approver(place_, "badr"), ref)
    with pytest.raises(Conflict, match="already"):
        place_.approvals.give(approver(place_, "badr"), ref)
    with pytest.raises(Conflict, match="already"):
        place_.approvals.give(approver(place_, "badr-2", subject="bank/badr"), ref)


def test_no_ends_it_also_after_yes(place_: Town) -> None:
    ref = ask(place_)
    for name in ("badr", "eman"):
        place_.approvals.give(approver(place_, name), ref)
    place_.approvals.refuse(approver(place_, "dana", "dpo"), ref, "not now")
    with pytest.raises(Denied, match="dana refused it"):
        place_.approvals.demand(place_.who("amal"), "catalog.promote", DIGEST)
    with pytest.raises(Conflict, match="is over"):
        place_.approvals.give(approver(place_, "fares"), ref)
    with pytest.raises(Conflict, match="was refused"):
        ask(place_)


def test_it_ends_by_itself_and_may_be_asked_anew(place_: Town) -> None:
    ref = ask(place_, days=1)
    for name in ("badr", "eman"):
        place_.approvals.give(approver(place_, name), ref)
    place_.clock.forward(DAY)
    with pytest.raises(Denied, match="time is over"):
        place_.approvals.demand(place_.who("amal"), "catalog.promote", DIGEST)
    assert ask(place_) == ref
    assert place_.approvals.show(place_.who("amal"), ref).standing.state == "waiting"


def test_asking_again_changes_nothing_and_asking_less_helps_nobody(place_: Town) -> None:
    ref = ask(place_)
    place_.approvals.give(approver(place_, "badr"), ref)
    assert ask(place_, needs=1) == ref
    assert place_.approvals.show(place_.who("amal"), ref).approval.needs == 2
    place_.approvals.give(approver(place_, "eman"), ref)
    with pytest.raises(Denied, match="1 more person"):
        place_.approvals.demand(place_.who("amal"), "catalog.promote", DIGEST, min_approvers=3)
    with pytest.raises(Denied, match="dpo"):
        place_.approvals.demand(place_.who("amal"), "catalog.promote", DIGEST, min_officers=1)


def test_a_question_put_by_another_does_not_give_the_asker_a_voice(place_: Town) -> None:
    friend = place_.who("friend", "bank", "data-scientist")
    place_.approvals.ask(friend, "catalog.promote", DIGEST, "for amal")
    ref = ask(place_)
    with pytest.raises(Denied, match="does not approve"):
        place_.approvals.give(approver(place_, "amal"), ref)


def test_asking_harder_keeps_what_people_said(place_: Town) -> None:
    """Else whoever may ask could undo approvals by asking the same thing again."""
    ref = ask(place_)
    place_.approvals.give(approver(place_, "badr"), ref)
    friend = place_.who("friend", "bank", "data-scientist")
    place_.approvals.ask(friend, "catalog.promote", DIGEST, "once more", needs=3)
    state = place_.approvals.show(place_.who("amal"), ref)
    assert ([voice.actor for voice in state.approval.voices], state.approval.needs) == (["badr"], 3)


def test_an_emergency_needs_one_lasts_a_day_and_is_opted_into(place_: Town) -> None:
    ref = ask(place_, emergency=True)
    amal = place_.who("amal")
    state = place_.approvals.give(approver(place_, "badr"), ref).standing
    assert (state.state, state.ratify, state.granted) == ("emergency", True, False)
    with pytest.raises(Denied, match="ratify"):
        place_.approvals.demand(amal, "catalog.promote", DIGEST)
    assert place_.approvals.demand(amal, "catalog.promote", DIGEST, allow_emergency=True)
    place_.clock.forward(EMERGENCY_PERIOD_S)
    with pytest.raises(Denied, match="undo what it allowed"):
        place_.approvals.demand(amal, "catalog.promote", DIGEST, allow_emergency=True)
    with pytest.raises(Conflict, match="is over"):
        place_.approvals.give(approver(place_, "eman"), ref)


def test_a_list_goes_on_and_leaves_out_nothing_that_stands_so(place_: Town) -> None:
    """Also where many newer ones stand otherwise."""
    amal, made = place_.who("amal", "bank", "data-scientist"), list[Ref]()
    for n in range(9):
        digest = f"sha256:{n:064x}"
        made.append(place_.approvals.ask(amal, "catalog.promote", digest, "it is good").ref)
        place_.clock.forward(1)
        if n > 3:
            place_.approvals.refuse(approver(place_, "badr"), made[-1], "it is not")
    seen, after = list[Ref](), ""
    while page := place_.approvals.list(amal, limit=2, after=after):
        seen += [one.ref for one in page]
        assert all(not one.more for one in page[:-1])
        after = page[-1].more
        if not after:
            break
    assert sorted(seen, key=str) == sorted(made, key=str)
    first = place_.approvals.list(amal, state="waiting", limit=3)
    assert first
    assert {one.standing.state for one in first} == {"waiting"}
    rest = place_.approvals.list(amal, state="waiting", limit=3, after=first[-1].more)
    assert {one.ref for one in (*first, *rest)} == set(made[:4])


def test_lists_show_what_the_guard_lets_them(place_: Town) -> None:
    ref = ask(place_)
    amal = place_.who("amal")
    assert [s.ref for s in place_.approvals.list(amal, state="waiting")] == [ref]
    assert place_.approvals.list(amal, state="granted") == ()
    assert place_.approvals.list(amal, action="serve.deploy") == ()
    assert place_.approvals.list(place_.who("spy", "rival")) == ()
    with pytest.raises(Denied):
        place_.approvals.list(CallContext(amal.actor, "home"))


@pytest.mark.parametrize(
    ("action", "digest", "more"),
    [
        ("promote", DIGEST, {}),
        ("catalog.promote", "short", {}),
        ("catalog.promote", "a b" * 20, {}),
        ("catalog.promote", DIGEST, {"needs": 0}),
        ("catalog.promote", DIGEST, {"needs": 10}),
        ("catalog.promote", DIGEST, {"days": 0}),
        ("catalog.promote", DIGEST, {"days": 367}),
        ("catalog.promote", DIGEST, {"reason": "  "}),
    ],
)
def test_a_question_nobody_could_answer_is_refused(
    place_: Town, action: str, digest: str, more: dict[str, int | str]
) -> None:
    with pytest.raises(Invalid):
        place_.approvals.ask(place_.who("amal"), action, digest, **{"reason": "why", **more})  # type: ignore[arg-type]
    assert place_.events() == []


def test_what_is_no_approval(place_: Town) -> None:
    with pytest.raises(Invalid):
        place_.approvals.give(approver(place_, "badr"), Ref("model", "fraud", "scorer"))
    with pytest.raises(NotFound):
        place_.approvals.give(approver(place_, "badr"), make_approval_ref("catalog.promote", OTHER))


def test_people_of_another_tenant_do_not_even_see_it(place_: Town) -> None:
    ref = ask(place_)
    with pytest.raises(NotFound):
        place_.approvals.give(place_.who("badr", "rival", "approver"), ref)
    guest = place_.who("root", "house", "approver")
    with pytest.raises(Denied, match="of this tenant"):
        place_.approvals.give(replace(guest, tenant="bank"), ref)
