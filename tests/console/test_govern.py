"""The pages of governing: approvals, zones, policy, people and keys, as those see them who may and who may not."""

import re

import pytest
from playwright.sync_api import expect

from falaj.console.pages.keys import build_key_tree
from falaj.console.pages.zones.zone_pages import make_map_places
from falaj.core.ref import Ref
from falaj.govern.key_records import KeyView
from falaj.govern.people import GUEST_ACTOR
from falaj.govern.records import GrantState, LegalZone, TransferGrant
from falaj.server import LocalClient
from tests.console.ground import Ground
from tests.documents import CONTRACT, CONTRACT_BYTES
from tests.servers.browser import Chromium

PROMOTE = "catalog.promote"


def asked(ground: Ground, action: str, words: str, state: str = "waiting") -> str:
    """The one approval for an action that stands so, by what its reason says."""
    found = ground.as_("badr").approvals.list(state=state, action=action)
    (one,) = [one for one in found if words in one.approval.reason]
    return str(one.ref)


def test_the_inbox_has_what_waits_for_the_reader_first(platform: Ground) -> None:
    seen = platform.visitor("badr").get("/console/approvals")
    assert next(one.text for one in seen.main.all("h2")) == "3 wait for you"
    card = next(one for one in seen.main.all("section.card") if PROMOTE in one.text)
    (exact,) = [one for one in platform.as_("badr").approvals.list(state="waiting") if one.approval.action == PROMOTE]
    assert exact.approval.digest in card.text
    assert card.one("a.ref")["href"].endswith("model:fraud/scorer@v3")
    assert "bank/amal" in card.text


def test_who_asked_is_told_why_their_voice_does_not_count(platform: Ground) -> None:
    seen = platform.visitor("amal").get("/console/approvals")
    assert "your voice would not count" in seen.text
    assert "one of these roles may: approver, dpo, security-officer" in seen.text
    assert "whoever asks does not approve" in seen.text
    assert not [form for form in seen.tree.all("form") if "/do/approvals/" in form["action"]]


def test_a_refused_question_shows_who_said_what_and_offers_nothing(platform: Ground) -> None:
    grant = asked(platform, "zones.grant", "fraud/customers", "refused")
    seen = platform.visitor("badr").get(f"/console/approvals/{grant}")
    assert "nobody there needs the names of customers" in seen.text
    assert seen.main.all("button.danger") == []
    past = platform.visitor("badr").get("/console/approvals?tab=history&state=refused")
    assert {one["data-state"] for one in past.main.all("td span.badge")} == {"refused"}


def test_a_thing_may_not_go_and_the_page_says_what_would_allow_it(platform: Ground) -> None:
    salem = platform.visitor("salem")
    seen = salem.get("/console/zones/check?thing=dataset:fraud/transactions@v3&to=eu-west&purpose=fraud")
    assert "No, it may not go there" in seen.text
    assert "regime-not-cleared:AE-PDPL" in seen.text
    assert "basis 23a" in seen.text
    (propose,) = [one for one in seen.main.all("a.button") if "zones/grants" in one["href"]]
    form = salem.get(propose["href"])
    assert form.main.one("input[name=f.scope]")["value"] == "dataset:fraud/transactions"
    assert "Yes, it may go there" in salem.get("/console/zones/check?thing=dataset:fraud/cards@v1&to=ae-dubai").text
    assert "Not found" in salem.get("/console/zones/check?thing=dataset:fraud/nothing@v1&to=eu-west").text


def test_a_grant_is_proposed_found_and_revoked(platform: Ground) -> None:
    dana, page = platform.visitor("dana"), "/console/zones/grants"
    given = {
        "basis": "AE-PDPL:23a", "src": "ae-dubai", "dst": "outside:GB", "scope": "dataset:fraud/cards",
        "purposes": "fraud", "documents": f"contract={CONTRACT}", "more": "expires=30d\nreason=a trial",
    }  # fmt: skip
    assert "Done" in dana.follow(dana.press(page, "zones", "grant", **given)).text
    (made,) = [one for one in platform.as_("dana").zones.grants() if one.grant.dst == "outside:GB"]
    one = f"/console/zones/grant:zones/{made.grant.id}"
    assert "a trial" in dana.get(one).text
    assert "GB" in dana.get("/console/zones").html
    dana.press(one, "zones", "revoke", reason="the trial is over")
    assert dana.get(one).main.one("p span.badge")["data-state"] == "revoked"
    assert dana.get("/console/zones/grant:zones/g-0").status == 404


def test_an_approver_opens_the_documents_of_a_transfer(platform: Ground) -> None:
    badr = platform.visitor("badr")
    waiting = platform.as_("badr").approvals.list(state="waiting", action="zones.grant")
    (state,) = [each for each in waiting if each.approval.documents == {"contract": CONTRACT}][:1]
    for page in (f"/console/approvals/{state.ref}", f"/console/zones/{state.approval.about.partition('@')[0]}"):
        assert CONTRACT in badr.get(page).text
        opened = badr.press(page, "approvals", "open_document")
        assert opened.html == CONTRACT_BYTES.decode()
        assert "attachment" in opened.headers["content-disposition"]


def test_an_officer_sees_and_confirms_a_notice(platform: Ground) -> None:
    dana = platform.visitor("dana")
    notices = platform.as_("dana").approvals.notices(unseen=True)
    assert "For the data protection officer" in dana.get("/console/approvals").text
    assert "For the data protection officer" not in platform.visitor("badr").get("/console/approvals").text
    name = str(notices[0].name)
    told = dana.follow(dana.press("/console/approvals", "approvals", "confirm", given=name))
    assert "Done" in told.text, told.text[:600]
    assert name not in [str(each.name) for each in platform.as_("dana").approvals.notices(unseen=True)]


def test_laws_say_how_far_they_were_checked(platform: Ground) -> None:
    salem = platform.visitor("salem")
    regimes = {one.id: one for one in platform.as_("salem").zones.regimes()}
    doubtful = next(one for one in regimes.values() if one.checked != "primary")
    assert "Not verified against the law itself" in salem.get(f"/console/zones/regimes/{doubtful.id}").text
    assert regimes["AE-PDPL"].review_by in salem.get("/console/zones/regimes/AE-PDPL").text
    assert salem.get("/console/zones/regimes/XX").status == 404


def test_explain_says_what_a_denied_action_would_need(platform: Ground) -> None:
    amal = platform.visitor("amal")
    text = amal.get("/console/policy/explain?what=people.add").text
    assert "No. none of your roles lets you govern here (people)" in text
    assert "one of these roles may: tenant-admin, security-officer" in text
    assert "Yes." in amal.get("/console/policy/explain?what=jobs.add&ref=job:fraud/train-1").text
    others = "/console/policy/explain?what=keys.rotate&who=sami"
    assert "Not allowed" in amal.get(others).text
    assert "Yes." in platform.visitor("omar").get(others).text


def test_a_rule_of_ones_own_is_added_and_taken_back(platform: Ground) -> None:
    fatima = platform.visitor("fatima")
    text = 'forbid (principal, action in Action::"read", resource) when { resource.classification >= 3 };'
    fatima.press("/console/policy", "policy", "add", name="no-secrets", text=text)
    assert "tenant-no-secrets" in fatima.get("/console/policy").text
    one = "/console/policy/policy:policies/tenant-no-secrets"
    assert "forbids" in fatima.get(one).text
    fatima.press(one, "policy", "remove")
    assert fatima.get(one).status == 404


def test_the_roles_are_the_table_of_the_house(platform: Ground) -> None:
    seen = platform.visitor("amal").get("/console/policy/roles")
    rows = {row.all("td")[0].text: [cell.text for cell in row.all("td")[1:]] for row in seen.main.all("tbody tr")}
    told = {one.role: list(one.allows.values()) for one in platform.as_("amal").policy.roles()}
    assert [len(cells) for cells in rows.values()] == [len(cells) for cells in told.values()]
    assert rows["approver"][5].replace(" ", "") == told["approver"][5].replace(" ", "")


def test_somebody_is_taken_in_changed_stopped_and_ended(platform: Ground) -> None:
    fatima = platform.visitor("fatima")
    made = fatima.press(
        "/console/people", "people", "add", name="hind", roles="approver\nml-engineer", jurisdiction="AE"
    )
    code = made.main.one("div.line code").text
    token = LocalClient(platform.house, GUEST_ACTOR).people.enroll(code).token
    assert platform.house.authenticate(token).roles == {"ml-engineer"}
    page = "/console/people/person:people/hind"
    assert "Roles that wait for confirmation" in fatima.get(page).text
    (confirmation,) = platform.as_("officer").approvals.list(state="waiting", action="people.confirm")
    platform.as_("officer").approvals.give(confirmation.ref)
    assert platform.house.authenticate(token).roles == {"approver", "ml-engineer"}
    assert token not in fatima.get(page).html
    fatima.press(page, "people", "change", roles="approver", projects="fraud", jurisdiction="AE")
    assert platform.house.authenticate(token).projects == {"fraud"}
    fatima.press(page, "people", "suspend")
    assert fatima.get(page).main.one("p span.badge")["data-state"] == "suspended"
    (known,) = platform.as_("fatima").people.show("person:people/hind").tokens
    fatima.press(page, "people", "resume")
    fatima.press(page, "people", "revoke", given=known)
    assert "None lives" in fatima.get(page).text


def test_others_see_people_and_what_they_would_need_to_change_them(platform: Ground) -> None:
    seen = platform.visitor("badr").get("/console/people/person:people/amal")
    assert "one of these roles may: tenant-admin, security-officer" in seen.text
    assert all("disabled" in one.attributes for one in seen.main.all(".act button"))
    assert "Not allowed" in platform.visitor("fatima").get("/console/people/tenants").text
    assert "bank" in platform.visitor("admin").get("/console/people/tenants").text


def test_a_key_is_rotated_and_its_rotation_seen(platform: Ground) -> None:
    sami, page = platform.visitor("sami"), "/console/keys/key:keys/tenant.ae-dubai"
    sami.press(page, "keys", "rotate")
    assert "2" in sami.get(page).main.one("dl.facts").text
    assert "carrying over" in sami.get("/console/keys").text
    assert platform.visitor("amal").get("/console/keys").status == 403


def test_secrets_are_names(platform: Ground) -> None:
    mona = platform.visitor("mona")
    mona.press("/console/keys/secrets", "secrets", "put", secret="secret:fraud/new-one", value="the-hidden-value")
    for page in ("/console/keys/secrets", "/console/keys/secret:fraud/new-one"):
        assert "new-one" in mona.get(page).text
        assert "the-hidden-value" not in mona.get(page).html


@pytest.mark.parametrize("lang", ["en", "ar"])
def test_pages_hold_what_verbs_say(platform: Ground, lang: str) -> None:
    seen = platform.visitor("salem", lang).get("/console/zones/zone:house/ae-dubai")
    zone = platform.as_("salem").zones.show("ae-dubai")
    assert all(one in seen.text for one in zone.regimes)
    assert zone.operator.name in seen.text


def test_zones_and_countries_outside_have_their_places() -> None:
    way = TransferGrant("g-1", "bank", "AE-PDPL", "23a", "a", "outside:GB", "dataset:x/*", ("x",), {}, 0.0, 1.0)
    lost = TransferGrant("g-2", "bank", "AE-PDPL", "23a", "a", "outside:ZZ", "dataset:x/*", ("x",), {}, 0.0, 1.0)
    states = [GrantState(one, "", "active", Ref("approval", "approvals", "x")) for one in (way, lost)]
    zones = [LegalZone("a", "AE-DU", "AE"), LegalZone("b", "XX", "ZZ"), LegalZone("c", "DE", "DE", active=False)]
    made = {one.id: one for one in make_map_places(zones, states)}
    assert set(made) == {"a", "c", "outside:GB"}
    assert (made["a"].state, made["c"].state) == ("active", "retired")


def test_keys_hang_under_what_wraps_them() -> None:
    def key(name: str, under: str) -> KeyView:
        return KeyView(Ref("key", "keys", name, "r1"), name.partition(".")[0], "dxb", 1, (1,), 0.0, 0.0, under)

    nodes, edges = build_key_tree([key("tenant.dxb", "zone"), key("meta.dxb", "tenant")], "root")
    assert {one.id for one in nodes} == {"root", "zone dxb", "tenant.dxb", "meta.dxb"}
    assert edges == [("root", "zone dxb"), ("zone dxb", "tenant.dxb"), ("tenant.dxb", "meta.dxb")]


def test_an_approval_is_given_and_another_refused_by_clicking(platform: Ground, chromium: Chromium) -> None:
    promote, grant = asked(platform, PROMOTE, ""), asked(platform, "zones.grant", "fraud/transactions")
    tab = platform.tab(chromium, "badr")
    tab.open("/console/approvals")
    card = tab.page.locator("section.card", has_text=PROMOTE)
    card.locator("summary", has_text="Approve").click()
    card.locator("textarea").first.fill("looked at the report")
    card.locator("form button", has_text="Approve").click()
    expect(tab.page.locator(".notice.good").first).to_contain_text("Done")
    expect(tab.page.locator("section.card", has_text=PROMOTE)).to_have_count(0)
    given = platform.as_("badr").approvals.show(promote)
    assert [(one.actor, one.says, one.reason) for one in given.approval.voices] == [
        ("badr", "give", "looked at the report")
    ]
    tab.open(f"/console/approvals/{grant}")
    tab.page.locator("summary", has_text="Refuse").click()
    tab.page.locator("form button", has_text="Refuse").click()
    expect(tab.page.locator("textarea:invalid")).to_be_focused()  # a no needs its reason
    tab.page.locator("textarea:invalid").fill("the contract has no audit clause")
    tab.page.locator("form button", has_text="Refuse").click()
    expect(tab.page.locator("span.badge").first).to_have_text("refused")
    expect(tab.page.locator("main")).to_contain_text("the contract has no audit clause")
    assert tab.wrong() == []


def test_own_new_token_is_shown_once_by_clicking(platform: Ground, chromium: Chromium) -> None:
    tab = platform.tab(chromium, "fatima", "ar", "dark")
    tab.open("/console/people/me")
    tab.page.locator("main summary").first.click()
    tab.page.locator("main form button").first.click()
    shown = tab.page.locator(".line code").first
    expect(shown).to_have_text(re.compile(r"^\S{30,}$"))
    token = shown.inner_text()
    assert platform.house.authenticate(token).id == "fatima"
    assert tab.axe() == []
    tab.page.locator("main > p a.button").click()
    expect(tab.page.locator("main summary").first).to_be_visible()
    assert token not in tab.page.content()
    assert tab.wrong() == []


def test_reset_of_an_enrolled_person_waits_for_a_second_person(platform: Ground) -> None:
    shown = platform.visitor("fatima").press("/console/people/person:people/mona", "people", "reset")
    assert "A second person must approve this reset" in shown.text
    assert "fje_" not in shown.html
