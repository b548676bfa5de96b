"""The fast way to say an event gives exactly what the language's own way gives."""

from hypothesis import given
from hypothesis import strategies as st

from falaj.core.context import Actor, CallContext, PolicyDecision
from falaj.core.event import Event
from falaj.core.ref import Ref
from falaj.store.envelope import EventFactory, encode_events

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
pins = st.builds(
    Ref, st.sampled_from(["data", "model"]), st.just("p"), st.sampled_from(["a", "b.c"]), st.sampled_from(["v1", "r9"])
)
values = st.one_of(texts, st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False))


@given(
    st.tuples(texts, texts, texts, texts, texts, texts),
    st.tuples(pins, st.lists(pins, max_size=3)),
    st.dictionaries(texts, values, max_size=4),
    st.lists(texts, max_size=3),
    st.floats(0, 4e9),
)
def test_said_is_encoded(
    words: tuple[str, ...], refs: tuple[Ref, list[Ref]], body: dict[str, str | int | float], rules: list[str], at: float
) -> None:
    verb, actor, behalf, policy, request, sealed = words
    ctx = CallContext(
        Actor(actor, "t", behalf=behalf), "z", request=request, decision=PolicyDecision(True, tuple(rules), policy)
    )
    event = EventFactory(ctx).say(verb, refs[0], tuple(refs[1]), body, sealed, "acme", at)
    (raw,) = encode_events([event])
    plain = Event(
        verb,
        actor,
        refs[0],
        "acme",
        "z",
        at,
        tuple(refs[1]),
        request,
        body,
        behalf,
        policy,
        tuple(rules),
        sealed,
        event.id,
    )
    assert event == plain
    assert raw == plain.encode()
    again = Event.decode(raw)
    assert again.encode() == raw
    assert again.body == dict(body)
