"""One suite for every identity provider (local tokens, OpenID Connect, workload tokens), and what OIDC must refuse."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from falaj.backends.local_identity import LocalIdentityProvider
from falaj.backends.oidc_identity import MAX_TOKEN_LIFETIME_S, OidcIdentityProvider, PendingLogin
from falaj.core.context import SYSTEM_TENANT, Actor
from falaj.core.errors import Invalid, Unauthenticated, Unavailable
from falaj.core.ports import IdentityProvider
from falaj.core.settings import OidcSettings
from falaj.govern.people import GUEST_ACTOR
from falaj.govern.people_records import TrustRule, WorkloadIdentity
from tests.govern.forge import FORGERIES, STRANGER_ED, Bench, jwk, sign, with_loose_bits
from tests.govern.issuer import Issuer
from tests.govern.village import Village
from tests.servers.oidc import OidcServer

RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
NOW = 1_800_000_000.0
GROUPS = {"data-scientists": "data-scientist", "approvers": "approver", "auditors": "auditor", "services": "service"}


def settings_for(server: OidcServer, **changes: Any) -> OidcSettings:
    chosen = OidcSettings(
        issuer=server.issuer,
        client=server.public_client,
        audience=server.audience,
        tenant="bank",
        roles=GROUPS,
        jurisdiction="AE",
        services=(server.service_client,),
    )
    return replace(chosen, **changes)


# One suite for all.


@dataclass
class Case:
    """A provider, a token that is good at `now` and has ended at `later`, and a broken copy of it."""

    identity: IdentityProvider
    token: str
    now: float
    later: float
    tenant: str = "bank"


def _local(village: Village) -> Case:
    admin = village.open_bank()
    issued = village.enroll(admin, "layla", ("data-scientist",), hours=1)
    find = village.accounts.lookup
    return Case(LocalIdentityProvider("local:", {"find": find}), issued.token, village.house.now(), issued.expires)


def _workload(village: Village) -> Case:
    village.open_bank()
    work = WorkloadIdentity("r7", "uae", "bank", frozenset({"service"}))
    return Case(village.tokens, village.tokens.issue(work, NOW), NOW, NOW + 600)


@pytest.fixture(params=["local", "workload", "oidc"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    village = Village(tmp_path)
    if request.param == "oidc":
        server: OidcServer = request.getfixturevalue("oidc_provider")
        now = time.time()
        made = Case(
            OidcIdentityProvider("oidc:", settings_for(server)), server.sign_in("alice")["access_token"], now, now + 700
        )
    else:
        made = {"local": _local, "workload": _workload}[request.param](village)
    yield made
    made.identity.close()
    village.house.ledger.close()


def test_a_good_token_is_an_actor_until_it_ends(case: Case) -> None:
    actor = case.identity.whois(case.token, case.now)
    assert actor is not None
    assert (actor.tenant, actor.roles != frozenset()) == (case.tenant, True)
    assert case.now < actor.expires <= case.later
    assert case.identity.whois(case.token, case.now) == actor
    with pytest.raises(Unauthenticated):
        case.identity.whois(case.token, case.later)


@pytest.mark.parametrize("change", [lambda t: t[:-2], lambda t: t + "AA", lambda t: t[:-9] + "AAAAAAAAA"])
def test_a_damaged_token_is_refused(case: Case, change: Callable[[str], str]) -> None:
    with pytest.raises(Unauthenticated) as refusal:
        case.identity.whois(change(case.token), case.now)
    assert case.token[-20:] not in str(refusal.value)


@pytest.mark.parametrize("text", ["", " ", "hello", "Bearer x", "a.b", "ghp_abcdef", "fk_x_y", "\x00", "é" * 50])
def test_what_is_no_token_is_left_to_others(case: Case, text: str) -> None:
    assert case.identity.whois(text, case.now) is None


def test_another_makers_token_is_left_to_others(case: Case) -> None:
    claims = {
        "iss": "https://login.elsewhere.example",
        "sub": "x",
        "aud": "falaj",
        "iat": case.now,
        "exp": case.now + 60,
    }
    assert case.identity.whois(sign({"alg": "EdDSA", "kid": "k"}, claims, STRANGER_ED), case.now) is None


# OpenID Connect against a certified provider.


@pytest.fixture
def oidc(oidc_provider: OidcServer) -> Iterator[OidcIdentityProvider]:
    identity = OidcIdentityProvider("oidc:", settings_for(oidc_provider))
    yield identity
    identity.close()


def test_a_person_signs_in_by_code_and_pkce(oidc: OidcIdentityProvider, oidc_provider: OidcServer) -> None:
    now = time.time()
    login = oidc.begin_login("http://127.0.0.1:49152/callback", now)
    query = parse_qs(urlsplit(login.url).query)
    assert query["code_challenge_method"] == ["S256"]
    assert login.verifier not in login.url
    granted = oidc.finish_login(login, oidc_provider.browse(login.url, "alice"), time.time())
    actor = oidc.whois(granted.token, time.time())
    assert actor is not None
    assert (actor.id, actor.tenant, actor.kind) == ("oidc.alice", "bank", "person")
    assert (actor.roles, actor.jurisdiction) == ({"data-scientist"}, "AE")
    assert actor.subject == f"{oidc_provider.issuer}#alice"
    assert granted.expires == actor.expires > now


@pytest.mark.parametrize("change", ["state", "nonce", "verifier", "redirect"])
def test_an_answer_to_another_sign_in_is_refused(
    oidc: OidcIdentityProvider, oidc_provider: OidcServer, change: str
) -> None:
    login = oidc.begin_login("http://127.0.0.1:49152/callback", time.time())
    callback = oidc_provider.browse(login.url, "alice")
    other: dict[str, Any] = {change: "x" * 43 if change != "redirect" else "http://127.0.0.1:49153/callback"}
    with pytest.raises(Unauthenticated):
        oidc.finish_login(replace(login, **other), callback, time.time())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda url, login: url.split("?")[0],
        lambda url, login: url + "&state=again",
        lambda url, login: url.replace("code=", "kode="),
        lambda url, login: f"{login.redirect}?state={login.state}&error=access_denied",
        lambda url, login: f"{login.redirect}?state={login.state}&code=guess",
        lambda url, login: f"{login.redirect}?state={login.state}&code=x&iss=https%3A%2F%2Fevil.example",
    ],
)
def test_a_spoiled_answer_is_refused(
    oidc: OidcIdentityProvider, oidc_provider: OidcServer, spoil: Callable[[str, PendingLogin], str]
) -> None:
    login = oidc.begin_login("http://127.0.0.1:49152/callback", time.time())
    with pytest.raises(Unauthenticated):
        oidc.finish_login(login, spoil(oidc_provider.browse(login.url, "alice"), login), time.time())


def test_an_answer_serves_once(oidc: OidcIdentityProvider, oidc_provider: OidcServer) -> None:
    login = oidc.begin_login("http://127.0.0.1:49152/callback", time.time())
    callback = oidc_provider.browse(login.url, "alice")
    oidc.finish_login(login, callback, time.time())
    with pytest.raises(Unauthenticated):
        oidc.finish_login(login, callback, time.time())


@pytest.mark.parametrize("address", ["http://evil.example/callback", "ftp://127.0.0.1/", "javascript:alert(1)", ""])
def test_a_sign_in_comes_back_only_to_a_safe_address(oidc: OidcIdentityProvider, address: str) -> None:
    with pytest.raises(Invalid):
        oidc.begin_login(address, time.time())


def test_a_service_signs_in_with_its_own_credentials(oidc: OidcIdentityProvider, oidc_provider: OidcServer) -> None:
    granted = oidc.service_login(oidc_provider.service_client, oidc_provider.service_secret, time.time())
    actor = oidc.whois(granted.token, time.time())
    assert actor is not None
    assert (actor.kind, actor.roles, actor.strong) == ("service", {"service"}, False)
    with pytest.raises(Unauthenticated):
        oidc.service_login(oidc_provider.service_client, "wrong", time.time())


def test_tokens_for_others_are_refused(oidc_provider: OidcServer) -> None:
    now = time.time()
    signed = oidc_provider.sign_in("alice")
    for changes, token in (
        ({}, signed["id_token"]),
        ({}, oidc_provider.service_token("urn:another")),
        ({"audience": "urn:another"}, signed["access_token"]),
        ({"client": "another"}, signed["access_token"]),
        ({"services": ()}, oidc_provider.service_token()),
        ({"algorithms": ("ES256", "EdDSA")}, signed["access_token"]),
    ):
        identity = OidcIdentityProvider("oidc:", settings_for(oidc_provider, **changes))
        with pytest.raises(Unauthenticated):
            identity.whois(token, now)
        identity.close()


def test_groups_without_a_role_give_none(oidc: OidcIdentityProvider, oidc_provider: OidcServer) -> None:
    actor = oidc.whois(oidc_provider.sign_in("nobody-in-particular")["access_token"], time.time())
    assert actor is not None
    assert actor.roles == frozenset()


def test_a_build_system_exchanges_its_token(oidc_provider: OidcServer, tmp_path: Path) -> None:
    identity = OidcIdentityProvider("oidc:", settings_for(oidc_provider))
    village = Village(tmp_path, {oidc_provider.issuer: identity})
    village.house.time = time.time()
    admin = village.open_bank()
    rule = TrustRule(oidc_provider.issuer, oidc_provider.audience, oidc_provider.service_client, "uae")
    village.trust(admin, "ci", rule)
    given = village.people.exchange(village.ctx(GUEST_ACTOR), "bank", "ci", oidc_provider.service_token())
    actor = village.tokens.whois(given.token, village.house.now())
    assert actor is not None
    assert (actor.kind, actor.tenant, actor.zone) == ("workload", "bank", "uae")
    for token in (oidc_provider.sign_in("alice")["access_token"], oidc_provider.service_token("urn:another"), "x"):
        with pytest.raises(Unauthenticated):
            village.people.exchange(village.ctx(GUEST_ACTOR), "bank", "ci", token)
    identity.close()
    village.house.ledger.close()


# OpenID Connect against a provider whose keys the test holds.


PUBLISHED = [jwk(RSA, "r1", alg="RS256"), jwk(EC, "e1"), jwk(ED, "d1")]


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        running.keys = list(PUBLISHED)
        yield running


@pytest.fixture
def made(issuer: Issuer) -> Iterator[OidcIdentityProvider]:
    identity = OidcIdentityProvider("oidc:", chosen_for(issuer))
    yield identity
    identity.close()


@pytest.fixture(scope="module")
def steady() -> Iterator[tuple[Issuer, OidcIdentityProvider]]:
    """An issuer that no test changes, for the many forgeries."""
    with Issuer() as running:
        running.keys = list(PUBLISHED)
        identity = OidcIdentityProvider("oidc:", chosen_for(running))
        yield running, identity
        identity.close()


def chosen_for(issuer: Issuer) -> OidcSettings:
    return OidcSettings(issuer=issuer.url, client="cli", tenant="bank", roles={"ml": "ml-engineer"}, services=("ci",))


def true_claims(issuer: Issuer) -> dict[str, Any]:
    return {"iss": issuer.url, "sub": "alice", "aud": "falaj", "iat": NOW - 5, "exp": NOW + 300, "groups": ["ml"]}


KEYS = {"RS256": ("r1", RSA), "ES256": ("e1", EC), "EdDSA": ("d1", ED)}


@pytest.fixture(params=sorted(KEYS))
def bench(request: pytest.FixtureRequest, steady: tuple[Issuer, OidcIdentityProvider]) -> Bench:
    issuer, made = steady
    kid, key = KEYS[request.param]
    header = {"alg": request.param, "kid": kid, "typ": "at+jwt"}
    return Bench(NOW, header, true_claims(issuer), key, lambda token: made.whois(token, NOW))


def test_the_bench_makes_true_tokens(bench: Bench) -> None:
    assert bench.judge(bench.token()).roles == {"ml-engineer"}
    assert bench.judge(bench.saying(azp="cli", nbf=NOW, iat=NOW + 59)).id == "oidc.alice"
    assert bench.judge(bench.saying(aud=["other", "falaj"], azp="cli")).id == "oidc.alice"


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_are_refused(bench: Bench, name: str) -> None:
    with pytest.raises(Unauthenticated):
        bench.judge(FORGERIES[name](bench))


@pytest.mark.parametrize(
    "claims",
    [
        {"azp": "another"},
        {"azp": 7},
        {"azp": ["cli"]},
        {"client_id": "another"},
        {"aud": ["falaj", "other"]},
        {"exp": NOW + MAX_TOKEN_LIFETIME_S + 60},
    ],
)
def test_even_a_true_signature_does_not_excuse_a_wrong_claim(bench: Bench, claims: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        bench.judge(bench.saying(**claims))


def test_the_token_does_not_choose_the_algorithm(issuer: Issuer, made: OidcIdentityProvider) -> None:
    claims = true_claims(issuer)
    pinned = [
        sign({"alg": "PS256", "kid": "r1"}, claims, RSA),  # true, but the key is published for RS256
        sign({"alg": "RS256", "kid": "e1"}, claims, RSA),
        sign({"alg": "ES256", "kid": "d1"}, claims, EC),
        sign({"alg": "EdDSA", "kid": "r1"}, claims, ED),
    ]
    for token in pinned:
        with pytest.raises(Unauthenticated):
            made.whois(token, NOW)


def test_a_token_coded_in_another_way_is_refused(bench: Bench) -> None:
    token, odd = next((token, odd) for n in range(4) if (odd := with_loose_bits(token := bench.saying(p="x" * n))))
    assert bench.judge(token).id == "oidc.alice"
    with pytest.raises(Unauthenticated):
        bench.judge(odd)


@pytest.mark.parametrize(
    "key",
    [
        jwk(ED, "d1", use="enc"),
        jwk(ED, "d1", alg="ES256"),
        jwk(ED, "d1", crv="Ed448"),
        jwk(ED, "d1", x="AAAA"),
        {"kty": "oct", "k": "c2VjcmV0", "kid": "d1"},
        {"kid": "d1"},
        "d1",
    ],
)
def test_a_published_key_that_does_not_fit_is_no_key(issuer: Issuer, made: OidcIdentityProvider, key: Any) -> None:
    issuer.keys = [key]
    with pytest.raises(Unauthenticated):
        made.whois(sign({"alg": "EdDSA", "kid": "d1"}, true_claims(issuer), ED), NOW)


def test_two_keys_of_one_id_are_no_key(issuer: Issuer, made: OidcIdentityProvider) -> None:
    issuer.keys = [jwk(ED, "d1"), jwk(STRANGER_ED, "d1")]
    with pytest.raises(Unauthenticated):
        made.whois(sign({"alg": "EdDSA", "kid": "d1"}, true_claims(issuer), ED), NOW)


def test_a_short_rsa_key_is_no_key(issuer: Issuer, made: OidcIdentityProvider) -> None:
    weak = rsa.generate_private_key(65537, 1024)  # noqa: S505 - the point of the test
    issuer.keys = [jwk(weak, "w")]
    with pytest.raises(Unauthenticated):
        made.whois(sign({"alg": "RS256", "kid": "w"}, true_claims(issuer), weak), NOW)


def token_of(issuer: Issuer, key: Any = ED, kid: str = "d1", at: float = NOW, **claims: Any) -> str:
    times = {"iat": at - 5, "exp": at + 300}
    return sign({"alg": "EdDSA", "kid": kid}, true_claims(issuer) | times | claims, key)


def test_a_rotated_key_is_found_by_one_more_look_but_not_at_every_guess(
    issuer: Issuer, made: OidcIdentityProvider
) -> None:
    assert made.whois(token_of(issuer), NOW) is not None
    issuer.keys = [jwk(STRANGER_ED, "d2")]
    assert made.whois(token_of(issuer, STRANGER_ED, "d2", NOW + 40), NOW + 40) is not None
    looks = issuer.asked["/keys"]
    for guess in range(20):
        with pytest.raises(Unauthenticated):
            made.whois(token_of(issuer, kid=f"guess{guess}", at=NOW + 41), NOW + 41)
    assert issuer.asked["/keys"] == looks
    with pytest.raises(Unauthenticated):
        made.whois(token_of(issuer, at=NOW + 80), NOW + 80)


def test_a_provider_that_is_away_is_bridged_for_a_while_and_no_longer(
    issuer: Issuer, made: OidcIdentityProvider
) -> None:
    assert made.whois(token_of(issuer), NOW) is not None
    issuer.down = True
    assert made.whois(token_of(issuer, at=NOW + 3000), NOW + 3000) is not None
    for later in (NOW + 3700, NOW + 3701, NOW + 9000):
        with pytest.raises(Unavailable):
            made.whois(token_of(issuer, at=later), later)
    issuer.down = False
    assert made.whois(token_of(issuer, at=NOW + 9100), NOW + 9100) is not None


def test_someone_removed_at_the_provider_is_out_when_the_token_ends(issuer: Issuer, made: OidcIdentityProvider) -> None:
    """What bounds it: no token outlives LONGEST_S, and one that was checked before is checked for time again."""
    token = token_of(issuer)
    assert made.whois(token, NOW) is not None
    assert made.whois(token, NOW + 299) is not None
    with pytest.raises(Unauthenticated):
        made.whois(token, NOW + 300)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda i: setattr(i, "down", True),
        lambda i: setattr(i, "raw", b"<html>"),
        lambda i: setattr(i, "raw", b"[]"),
        lambda i: setattr(i, "raw", b"[" * 100_000),
        lambda i: setattr(i, "raw", b'{"pad": "' + b"x" * (2 << 20) + b'"}'),
        lambda i: setattr(i, "redirect", "http://169.254.169.254/latest"),
        lambda i: i.document.update(issuer="https://other.example"),
        lambda i: i.document.update(issuer=i.url + "/"),
        lambda i: setattr(i, "keys", "none"),
    ],
)
def test_a_provider_that_is_not_itself_proves_nobody(
    issuer: Issuer, made: OidcIdentityProvider, break_it: Callable[[Issuer], None]
) -> None:
    break_it(issuer)
    with pytest.raises(Unavailable):
        made.whois(token_of(issuer), NOW)


@pytest.mark.parametrize("address", ["http://keys.example/k", "file:///etc/passwd", "", "https://a@b.example/"])
def test_keys_come_from_a_safe_address_only(issuer: Issuer, made: OidcIdentityProvider, address: str) -> None:
    issuer.document["jwks_uri"] = address
    with pytest.raises((Unavailable, Invalid)):
        made.whois(token_of(issuer), NOW)


@pytest.mark.parametrize("address", ["http://login.example", "", "login.example", "https://x@login.example"])
def test_an_issuer_without_tls_does_not_start(address: str) -> None:
    with pytest.raises(Invalid):
        OidcIdentityProvider("oidc:", OidcSettings(issuer=address))


@pytest.mark.parametrize("names", [("none",), ("HS256",), ("RS256", "HS256"), ()])
def test_weak_algorithms_cannot_be_configured(names: tuple[str, ...]) -> None:
    with pytest.raises(Invalid):
        OidcIdentityProvider("oidc:", OidcSettings(issuer="https://login.example", algorithms=names))


def test_a_narrow_choice_of_algorithms_does_not_judge_others_tokens(issuer: Issuer, tmp_path: Path) -> None:
    identity = OidcIdentityProvider("oidc:", replace(chosen_for(issuer), algorithms=("RS256",)))
    village = Village(tmp_path)
    assert identity.whois(_workload(village).token, NOW) is None
    with pytest.raises(Unauthenticated):
        identity.whois(token_of(issuer), NOW)
    identity.close()
    village.house.ledger.close()


# From claims to an actor.


def actor_of(issuer: Issuer, options: dict[str, Any], claims: dict[str, Any]) -> Actor:
    chosen = replace(
        OidcSettings(issuer=issuer.url, tenant="bank", roles={"ml": "ml-engineer", "bots": "service"}), **options
    )
    identity = OidcIdentityProvider("oidc:", {"oidc": chosen})
    actor = identity.whois(token_of(issuer, **claims), NOW)
    identity.close()
    assert actor is not None
    return actor


def test_tenant_and_jurisdiction_may_come_from_claims(issuer: Issuer) -> None:
    options = {"tenant": "claim:org", "jurisdiction": "claim:country", "projects": "claim:teams"}
    claims = {"org": "clinic", "country": "AE-DIFC", "teams": ["fraud", "*", 7]}
    actor = actor_of(issuer, options, claims)
    assert (actor.tenant, actor.jurisdiction, actor.projects) == ("clinic", "AE-DIFC", {"fraud"})
    assert actor_of(issuer, options, {"org": "clinic", "teams": "fraud risk"}).projects == {"fraud", "risk"}
    assert actor_of(issuer, options, {"org": "clinic"}).projects == frozenset()
    assert actor_of(issuer, {"projects": "fraud,risk"}, {}).projects == {"fraud", "risk"}


@pytest.mark.parametrize("org", [SYSTEM_TENANT, "", None, 7, ["bank"], "../bank", "BANK", "a" * 200])
def test_a_claim_never_makes_someone_the_house_or_nobody(issuer: Issuer, org: Any) -> None:
    with pytest.raises(Unauthenticated):
        actor_of(issuer, {"tenant": "claim:org"}, {"org": org})


@pytest.mark.parametrize(
    ("claims", "strong"),
    [
        ({}, False),
        ({"amr": ["pwd"]}, False),
        ({"amr": ["pwd", "mfa"]}, True),
        ({"amr": "mfa"}, False),
        ({"acr": "phr"}, True),
        ({"acr": "0"}, False),
        ({"acr": "phr", "auth_time": NOW - 86_400}, False),
        ({"acr": "phr", "auth_time": "now"}, False),
        ({"acr": "phr", "client_id": "alice"}, False),
    ],
)
def test_more_than_one_factor_must_be_said(issuer: Issuer, claims: dict[str, Any], strong: bool) -> None:
    assert actor_of(issuer, {}, claims).strong is strong


@pytest.mark.parametrize("groups", ["ml", 7, None, {"ml": 1}, [["ml"]]])
def test_odd_groups_give_no_role(issuer: Issuer, groups: Any) -> None:
    assert actor_of(issuer, {}, {"groups": groups}).roles == frozenset()


def test_people_are_no_services_and_services_no_people(issuer: Issuer) -> None:
    both = {"groups": ["ml", "bots"]}
    assert actor_of(issuer, {}, both).roles == {"ml-engineer"}
    service = actor_of(issuer, {}, both | {"client_id": "alice"})
    assert (service.kind, service.roles) == ("service", {"service"})


@pytest.mark.parametrize("subject", ["auth0|5f7c", "layla@bank.example", "a/../b", "é", "x" * 400, "run.7", "house"])
def test_any_subject_gets_a_safe_name_of_its_own(issuer: Issuer, subject: str) -> None:
    actor = actor_of(issuer, {}, {"sub": subject})
    assert actor.id.startswith("oidc.")
    assert len(actor.id) <= 106
    assert actor.person == f"{issuer.url}#{subject}"
    assert actor_of(issuer, {}, {"sub": subject + "x"}).id != actor.id
