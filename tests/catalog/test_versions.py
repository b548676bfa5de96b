"""How versions come in and are found: what a hostile publisher cannot do, what is said once, what names tell."""

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.catalog import service_base
from falaj.catalog.model_signing import verify_signature
from falaj.catalog.records import ModelCard, PublishFacts, SentTree
from falaj.content.records import TableColumn, TableDescription
from falaj.core.byte_channel import UploadReceipt
from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.snapshot.records import TreeBatch
from falaj.store.stored_objects import list_intents
from tests.catalog.shelfhouse import model, publish, safetensors, tree_of
from tests.people import enroll
from tests.town import LABEL, Town, refusal


@pytest.fixture
def town(shared_town: Town) -> Town:
    return shared_town


@pytest.fixture
def name(project: str) -> str:
    return f"dataset:{project}/tx"


def begun(here: Any, name: str, text: str = "rows") -> SentTree:
    return tree_of(here, here.catalog.begin(name).ticket, text)


def test_a_run_that_went_on_is_nothing_new(town: Town, name: str, project: str) -> None:
    """Outputs of a job are published again by whoever leads when the first one died before it could say so."""
    amal = town.as_("amal")
    amal.track.create(f"experiment:{project}/all")
    run = amal.track.start(f"experiment:{project}/all").ref
    first = publish(amal, name, "made", inputs={"run": run.bare})
    amal.track.end(run.bare)
    assert publish(amal, name, "made", inputs={"run": run.bare}) == first
    other = amal.track.start(f"experiment:{project}/all").ref
    assert publish(amal, name, "made", inputs={"run": other.bare}) != first


def test_what_did_not_change_is_confirmed_where_no_more_is_known_of_it(town: Town, name: str) -> None:
    amal, table = town.as_("amal"), TableDescription(1, (TableColumn("a", "int"),))
    assert amal.catalog.confirm(name, "b3:none") is None, "there is nothing yet"
    first = publish(amal, name, "one", facts=PublishFacts(message="first", table=table))
    root = amal.catalog.show(first).root
    assert amal.catalog.confirm(name, root) == first
    assert amal.catalog.confirm(name, "b3:other") is None
    said = [event for event in town.events(verb="catalog.publish") if event.subject == first]
    assert [event.body.get("unchanged") for event in said] == [None, 1]
    tagged = publish(amal, name, "one", facts=PublishFacts(tags={"a": "b"}))
    assert tagged != first
    assert amal.catalog.confirm(name, root) is None, "who says nothing says less than the newest version does"
    with pytest.raises(Denied):
        town.as_("omar").catalog.confirm(name, root)
    assert town.as_("sara").catalog.confirm(name, root) is None, "another tenant learns of it"


def test_the_same_again_is_no_new_version(town: Town, name: str) -> None:
    amal = town.as_("amal")
    first = publish(amal, name, "one", facts=PublishFacts(message="first"))
    assert publish(amal, name, "one", facts=PublishFacts(message="again")) == first
    amal.catalog.annotate(first, message="better said", tags={"reviewed": "yes"})
    assert publish(amal, name, "one") == first, "what others say of it made it another thing"
    assert publish(amal, name, "one", facts=PublishFacts(tags={"a": "b"})).version == "v2"
    assert publish(amal, name, "one", facts=PublishFacts(tags={"a": "b"}), label=LABEL).version == "v3"
    assert publish(amal, name, "one", facts=PublishFacts(tags={"a": "b"}), inputs={"from": first}).version == "v4"
    shown = amal.catalog.show(first)
    assert (shown.message, shown.tags) == ("better said", {"reviewed": "yes"})
    assert amal.catalog.annotate(first, drop=("reviewed",)).tags == {}


def test_the_same_model_again_is_no_new_version(town: Town, project: str) -> None:
    amal, table = town.as_("amal"), TableDescription(2, (TableColumn("a", "int", mean=0.5), TableColumn("b", "text")))
    card = ModelCard("onnx", command=("python", "train.py"), metrics={"auc": 0.1})
    facts = PublishFacts(table=table, card=card, files={"m": "0" * 64})
    first = publish(amal, f"model:{project}/m", "one", facts=facts)
    assert publish(amal, f"model:{project}/m", "one", facts=facts) == first
    assert amal.catalog.show(first).table == table


def test_a_publish_that_ended_holds_nothing_back(town: Town, name: str) -> None:
    amal = town.as_("amal")
    ctx = town.house.context(town.actor("amal"))

    def open_intents() -> int:
        with town.house.ledger.read(ctx) as tx:
            return sum(record.body["thing"] == name for record in list_intents(tx, "bank"))

    made = begun(amal, name)
    assert open_intents() == 1
    assert isinstance(refusal(lambda: amal.catalog.commit(name, made, facts=PublishFacts(message="x" * 4001))), Invalid)
    assert open_intents() == 1, "a publish that failed can be tried again"
    amal.catalog.commit(name, made)
    assert open_intents() == 0
    assert amal.catalog.commit(name, made).version == "v1", "an answer that was lost cannot be asked for again"


def test_nobody_builds_on_what_was_not_sent_or_read(town: Town, name: str, project: str) -> None:
    amal, catalog = town.as_("amal"), town.as_("amal").catalog
    other = publish(amal, f"dataset:{project}/secret", "other's rows")
    stolen = catalog.open(other).tree
    made = begun(amal, name)
    sara = town.as_("sara")
    acts: list[Callable[[], Any]] = [
        lambda: catalog.commit(name, replace(made, tree=stolen)),
        lambda: catalog.commit(name, replace(made, tree=stolen), base=other),
        lambda: catalog.commit(f"dataset:{project}/third", made),
        lambda: catalog.commit(name, replace(made, receipts=(UploadReceipt("b3:" + "0" * 64, 1, "00"),))),
        lambda: catalog.commit(name, replace(made, ticket="x.y")),
        lambda: town.as_("mona").catalog.commit(name, made),
        lambda: sara.catalog.commit(name, made),
        lambda: catalog.commit(name, replace(made, ticket=catalog.open(other).ticket)),
    ]
    for act in acts:
        assert isinstance(refusal(act), Denied)
    assert isinstance(refusal(lambda: sara.catalog.open(other)), NotFound)
    assert isinstance(refusal(lambda: catalog.show(name)), NotFound), "half of it can be seen"


HOSTILE: list[tuple[str, Callable[[SentTree], SentTree]]] = [
    ("root", lambda made: replace(made, tree=replace(made.tree, root="../../etc"))),
    ("counts", lambda made: replace(made, tree=replace(made.tree, num_files=-1))),
    ("size", lambda made: replace(made, tree=replace(made.tree, size_bytes=1 << 70))),
    ("no batch", lambda made: replace(made, tree=replace(made.tree, batches=()))),
    ("twice", lambda made: replace(made, tree=replace(made.tree, batches=made.tree.batches * 2))),
    ("many", lambda made: replace(made, tree=replace(made.tree, batches=made.tree.batches * 5000))),
    ("receipts", lambda made: replace(made, receipts=made.receipts * 5000)),
    ("bundle", lambda made: replace(made, tree=replace(made.tree, batches=(TreeBatch("sha1:0", "b3:0"),)))),
    (
        "shard",
        lambda made: replace(made, tree=replace(made.tree, batches=(replace(made.tree.batches[0], shard="x"),))),
    ),
    (
        "another shard",
        lambda made: replace(
            made, tree=replace(made.tree, batches=(replace(made.tree.batches[0], shard="b3:" + "1" * 64),))
        ),
    ),
]


@pytest.mark.parametrize(("what", "spoil"), HOSTILE, ids=[what for what, _ in HOSTILE])
def test_a_hostile_tree_is_refused(town: Town, name: str, what: str, spoil: Callable[[SentTree], SentTree]) -> None:
    amal = town.as_("amal")
    made = begun(amal, name)
    assert isinstance(refusal(lambda: amal.catalog.commit(name, spoil(made))), Invalid | Conflict | Denied)
    assert amal.catalog.commit(name, made).version == "v1"


WIDE = TableDescription(1, tuple(TableColumn(f"c{n}", "int") for n in range(5001)))
TOO_MUCH = [
    PublishFacts(message="x" * 4001),
    PublishFacts(tags={str(n): "" for n in range(1001)}),
    PublishFacts(tags={"": "x"}),
    PublishFacts(tags={"k" * 251: "x"}),
    PublishFacts(tags={"k": "x" * 5001}),
    PublishFacts(table=WIDE),
    PublishFacts(table=TableDescription(1, (TableColumn("c", "t" * 5001),))),
    PublishFacts(table=TableDescription(1, (TableColumn("c", "int", mean=float("nan")),))),
    PublishFacts(card=ModelCard(metrics={"auc": float("inf")})),
    PublishFacts(card=ModelCard(metrics={f"m{n}": 0.0 for n in range(10_001)})),
    PublishFacts(card=ModelCard(params={"p": "x" * (5 << 20)})),
    PublishFacts(card=ModelCard(signature={"x": float("nan")})),
    PublishFacts(files={"model.bin": "not a digest"}),
    PublishFacts(files={f"{n}": "0" * 64 for n in range(10_001)}),
]


@pytest.mark.parametrize("facts", TOO_MUCH, ids=range(len(TOO_MUCH)))
def test_more_is_said_than_a_record_holds(town: Town, name: str, facts: PublishFacts) -> None:
    amal = town.as_("amal")
    assert isinstance(refusal(lambda: publish(amal, name, facts=facts)), Invalid)


def test_inputs_are_pinned_and_their_labels_joined(town: Town, name: str, project: str) -> None:
    amal = town.as_("amal")
    source = publish(amal, f"dataset:{project}/source", label=LABEL)
    blob = amal.store.put(f"blob:{project}/x", b"x", label="NONE")
    made = publish(amal, name, inputs={"rows": Ref("dataset", project, "source"), "more": blob})
    shown = amal.catalog.show(made)
    assert shown.inputs == {"rows": source, "more": blob}
    assert shown.label.classification == 2
    [event] = [each for each in town.events(verb="catalog.publish", name="tx") if each.subject == made]
    assert set(event.inputs) == {source, blob}
    assert isinstance(
        refusal(lambda: publish(amal, name, "2", inputs={"x": Ref("dataset", project, "none")})), NotFound
    )
    assert isinstance(refusal(lambda: publish(amal, name, "2", inputs={"a\nb": source})), Invalid)


def test_who_may_write_and_not_look_gets_nothing_to_read(town: Town, name: str, project: str) -> None:
    amal = town.as_("amal")
    version = publish(amal, name, label=LABEL)
    assert amal.catalog.begin(name).base == version
    held = amal.catalog.open(version).tree.batches[0].shard
    for place in ("GB", ""):
        who = f"abroad-{place.lower()}{project}"
        town.tokens[who] = enroll(town.as_("fatima"), who, ("data-scientist",), jurisdiction=place)
        abroad = town.as_(who)
        assert isinstance(refusal(lambda each=abroad: each.catalog.open(version)), Denied)
        ticket = abroad.catalog.begin(name).ticket
        assert isinstance(refusal(lambda each=abroad, by=ticket: list(each.bytes.get(by, held))), Denied)


def test_nobody_learns_the_names_of_what_they_may_not_see(town: Town, project: str) -> None:
    amal = town.as_("amal")
    hidden = publish(amal, f"dataset:{project}/hidden")
    version = model(amal, "1", f"model:{project}-open/m", inputs={"train": hidden})
    town.tokens["visitor"] = enroll(
        town.as_("fatima"), f"visitor-{project}", ("data-scientist",), projects=(f"{project}-open",), jurisdiction="AE"
    )
    guest = town.as_("visitor").catalog
    assert guest.show(version).inputs == {}
    assert [each.inputs for each in guest.list(kind="model").versions if each.ref == version] == [{}]
    assert amal.catalog.show(version).inputs == {"train": hidden}
    told = refusal(lambda: guest.open(hidden))
    assert isinstance(told, NotFound)


def test_models_are_signed_as_themselves(town: Town, project: str) -> None:
    amal = town.as_("amal")
    version = model(amal, "weights", f"model:{project}/m")
    opened = amal.catalog.open(version)
    digest = hashlib.sha256(safetensors("weights")).hexdigest()
    verify_signature(opened.signature, opened.key, {"model.safetensors": digest}, str(version))
    assert amal.catalog.show(version).signed
    assert not amal.catalog.show(publish(amal, f"model:{project}/m", "no files")).signed


def test_names_are_described_before_they_have_versions(town: Town, name: str, project: str) -> None:
    amal, catalog = town.as_("amal"), town.as_("amal").catalog
    made = catalog.describe(name, about="card payments", tags={"team": "fraud", "x": "y"})
    assert (made.newest, made.count, made.about) == ("", 0, "card payments")
    assert isinstance(refusal(lambda: catalog.show(name)), NotFound)
    catalog.describe(name, drop=("x",))
    version = publish(amal, name)
    told = catalog.about(name)
    assert (told.newest, told.about, told.tags) == (version.version, "card payments", {"team": "fraud"})
    assert told.made_at == made.made_at
    assert catalog.describe(name, about="").about == ""
    for act in (
        lambda: catalog.describe(version, about="x"),
        lambda: catalog.describe("run:a/b", about="x"),
        lambda: catalog.describe(name, about="x" * 4001),
        lambda: catalog.describe(name, tags={"k" * 300: ""}),
    ):
        assert isinstance(refusal(act), Invalid)
    assert isinstance(refusal(lambda: town.as_("sara").catalog.about(name)), NotFound)


def test_lists_walk_through_every_kind_and_show_no_more_than_one_may_see(town: Town, project: str) -> None:
    amal, catalog = town.as_("amal"), town.as_("amal").catalog
    made = [
        publish(amal, f"{kind}:{project}/n{n}", f"{kind}{n}") for kind in ("dataset", "model", "code") for n in "12"
    ]
    catalog.describe(f"model:{project}/empty")
    for limit in (1, 2, 3, 100):
        refs, names = [], []
        after = ""
        while True:
            page = catalog.list(project=project, after=after, limit=limit)
            refs += [each.ref for each in page.versions]
            after = page.next
            if not after:
                break
        while True:
            named = catalog.names(project=project, after=after, limit=limit)
            names += [each.ref for each in named.names]
            after = named.next
            if not after:
                break
        assert sorted(refs) == sorted(made)
        assert sorted(names) == sorted([*(ref.bare for ref in made), Ref("model", project, "empty")])
    assert [each.ref.kind for each in catalog.names(kind="code", project=project).names] == ["code", "code"]
    assert town.as_("sara").catalog.names(project=project).names == ()
    for act in (
        lambda: catalog.list(kind="secret"),
        lambda: catalog.names(kind="person"),
        lambda: catalog.list(limit=0),
    ):
        assert isinstance(refusal(act), Invalid)


def test_every_version_of_a_name_however_it_is_written(town: Town, name: str, project: str) -> None:
    amal, bare = town.as_("amal"), f"one-{project}"
    mine, other = f"dataset:{project}/{bare}", f"dataset:{project}-too/{bare}"
    made = {str(publish(amal, each, text)) for each in (mine,) for text in ("1", "2")}
    publish(amal, other)

    def listed(**said: str) -> set[str]:
        return {str(each.ref) for each in amal.catalog.list(**said).versions}

    assert listed(name=mine) == listed(name=f"{project}/{bare}") == listed(name=bare, project=project) == made
    assert listed(name=mine, kind="dataset", project=project) == made
    assert listed(name=mine, search="one") == {f"{mine}@v2"}
    assert listed(name=bare) == {*made, f"{other}@v1"}
    assert listed(name=f"model:{project}/{bare}") == set()
    for wrong in ({"name": f"{mine}@v1"}, {"name": mine, "kind": "model"}, {"name": mine, "project": "other"}):
        assert isinstance(refusal(lambda wrong=wrong: listed(**wrong)), Invalid)


@pytest.mark.parametrize("most", [1000, 3])
def test_versions_of_a_name_come_newest_first_as_numbers_go(
    town: Town, name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`most`: so many are sorted at once, and more are walked through one by one."""
    monkeypatch.setattr(service_base, "_MAX_SORTED_VERSIONS", most)
    amal, seen, after = town.as_("amal"), [], ""
    made = [publish(amal, name, f"text {number}") for number in range(12)]
    amal.catalog.tag(made[1], "champion")  # what is written anew is not newer for it
    town.as_("dana").catalog.delete(made[10], "a test")
    while True:
        page = amal.catalog.list(name=name, after=after, limit=4)
        seen += [one.ref.version for one in page.versions]
        after = page.next
        if not after:
            break
    assert seen == [f"v{number}" for number in (12, *range(10, 0, -1))]
    assert amal.catalog.list(name=name, after="999").versions[0].ref == made[11]
    for wrong in ("x", "9" * 5000, "-1"):
        assert isinstance(refusal(lambda wrong=wrong: amal.catalog.list(name=name, after=wrong)), Invalid)
    assert town.as_("sara").catalog.list(name=name).versions == ()


def test_namesakes_come_newest_first_too(town: Town, project: str) -> None:
    """A name without its kind, or without its project: one after another, each as its numbers go."""
    amal, bare = town.as_("amal"), f"same-{project}"
    owners = [f"dataset:{project}/{bare}", f"dataset:{project}-too/{bare}", f"code:{project}/{bare}"]
    made = {each: [publish(amal, each, f"{number}") for number in range(11)][::-1] for each in owners}

    def listed(limit: int, who: str = "amal", **said: str) -> list[Ref]:
        seen, after = [], ""
        while True:
            page = town.as_(who).catalog.list(**said, after=after, limit=limit)
            assert len(page.versions) <= limit
            seen += [one.ref for one in page.versions]
            after = page.next
            if not after:
                return seen

    here, there, code = (made[each] for each in owners)
    for limit in (3, 11, 100):
        assert listed(limit, name=f"{project}/{bare}") == [*here, *code]
        assert listed(limit, name=bare, kind="dataset") == [*here, *there]
        assert listed(limit, name=bare) == [*here, *there, *code]
    assert listed(5, "sara", name=bare) == []
    for wrong in ({"after": "x"}, {"after": f"{owners[0]}@champion"}, {"limit": 0}, {"kind": "secret"}):
        assert isinstance(refusal(lambda wrong=wrong: amal.catalog.list(name=bare, **wrong)), Invalid)


def test_many_publish_one_name_at_once(town: Town, name: str) -> None:
    def act(n: int) -> str:
        for _ in range(20):
            try:
                return publish(town.as_("amal"), name, f"text {n}").version
            except FalajError as error:
                if not error.retry:
                    raise
        raise AssertionError("never let through")

    with ThreadPoolExecutor(4) as pool:
        versions = list(pool.map(act, range(12)))
    assert sorted(versions, key=lambda v: int(v[1:])) == [f"v{n}" for n in range(1, 13)]
    catalog = town.as_("amal").catalog
    assert catalog.about(name).newest == "v12"
    ref = Ref.parse(name)
    newest = [each for each in catalog.list(project=ref.project).versions if each.ref.bare == ref]
    assert [each.ref.version for each in newest] == ["v12"], "two versions are the newest"


LAWFUL_AT_HOME = "AE-CBUAE,purpose=fraud"


def lying(town: Town, zone: str) -> dict[str, int]:
    """How many objects lie in a zone, by state."""
    return {each.state: each.objects for each in town.as_("ola").store.space() if each.zone == zone}


def test_nothing_is_sent_where_its_label_may_not_lie(town: Town, project: str) -> None:
    """The label that is given, those of its inputs, and that of the version before: each is asked of the place."""
    amal, before = town.as_("amal"), lying(town, "eu-west")
    held = publish(amal, f"dataset:{project}/held", label=LAWFUL_AT_HOME)
    asked: list[Callable[[], Any]] = [
        lambda: amal.catalog.begin(f"dataset:{project}/z", zone="eu-west", label=LAWFUL_AT_HOME),
        lambda: amal.catalog.begin(f"dataset:{project}/z", zone="eu-west", inputs={"data": held}),
        lambda: amal.catalog.begin(held.bare, zone="eu-west"),
    ]
    for ask in asked:
        denied = refusal(ask)
        assert isinstance(denied, Denied)
        assert "AE-CBUAE" in denied.message
    told = [each.body for each in town.events(verb="guard.deny") if f"dataset:{project}/" in each.body["about"]]
    assert [(each["action"], each["about"]) for each in told] == [
        ("catalog.begin", f"dataset:{project}/z"),
        ("catalog.begin", f"dataset:{project}/z"),
        ("catalog.begin", f"dataset:{project}/held"),
    ]
    assert lying(town, "eu-west") == before


def test_what_an_older_client_sent_is_dropped_where_it_may_not_lie(tmp_path: Path) -> None:
    """It says the label at the end only: the commit is refused, which is recorded, and the bytes go at once."""
    town = Town(tmp_path)
    try:
        amal = town.as_("amal")
        shared = publish(amal, "dataset:fraud/open", "open rows", zone="eu-west")
        before = lying(town, "eu-west")
        for text in ("rows", "open rows"):
            made = tree_of(amal, amal.catalog.begin("dataset:fraud/z", zone="eu-west").ticket, text)
            denied = refusal(lambda made=made: amal.catalog.commit("dataset:fraud/z", made, label=LAWFUL_AT_HOME))
            assert isinstance(denied, Denied)
            assert lying(town, "eu-west") == before, "what others hold stays, the rest is gone"
        taken = tree_of(amal, amal.catalog.begin("dataset:fraud/y", zone="eu-west").ticket, "rows")
        refusal(lambda: amal.catalog.commit("dataset:fraud/y", taken, label=LAWFUL_AT_HOME))
        assert isinstance(refusal(lambda: amal.catalog.commit("dataset:fraud/y", taken)), Conflict)
        events = town.events(verb="guard.deny")
        assert [(each.body["action"], each.body["about"]) for each in events] == [
            ("catalog.commit", "dataset:fraud/z"),
            ("catalog.commit", "dataset:fraud/z"),
            ("catalog.commit", "dataset:fraud/y"),
        ]
        replayed = amal.policy.explain(events[0].id)
        assert (replayed.allowed, replayed.same) == (False, True)
        ticket = amal.catalog.open(shared).ticket
        assert b"".join(amal.bytes.get(ticket, amal.catalog.open(shared).tree.batches[0].shard)) == b"shard open rows"
        files = [each for each in (tmp_path / "eu-west").rglob("*") if each.is_file()]
        assert len(files) == sum(before.values())
    finally:
        town.close()


def test_what_was_refused_waits_while_others_put_there(tmp_path: Path) -> None:
    """Who was told a moment ago that bytes are there can still build on them; once they had the time, they go."""
    town = Town(tmp_path)
    try:
        amal, mona = town.as_("amal"), town.as_("mona")
        ticket = mona.catalog.begin("model:fraud/m", zone="eu-west").ticket
        made = tree_of(amal, amal.catalog.begin("dataset:fraud/z", zone="eu-west").ticket, "rows")
        theirs = tree_of(mona, ticket, "rows")
        assert isinstance(refusal(lambda: amal.catalog.commit("dataset:fraud/z", made, label=LAWFUL_AT_HOME)), Denied)
        assert mona.catalog.commit("model:fraud/m", theirs).version == "v1"
    finally:
        town.close()
