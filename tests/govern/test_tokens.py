"""Workload tokens: only what this installation signed, as it signed it, for minutes, for one run and zone."""

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.context import Actor
from falaj.core.errors import Invalid, Unauthenticated
from falaj.core.jwt_claims import is_signed_token, read_token
from falaj.core.label import ANY_VALUE
from falaj.govern.keyring import compute_key_id
from falaj.govern.people_records import WorkloadIdentity
from falaj.govern.roles import ROLES
from falaj.govern.workload_tokens import MAX_TOKEN_TTL_S, WORK_ROLES, WorkloadTokens, limit_to_delegator
from tests.govern.forge import FORGERIES, STRANGER_ED, Bench, with_loose_bits

NOW = 1_800_000_000.0
WORK = WorkloadIdentity("r7", "dubai", "bank", frozenset({"ml-engineer"}), frozenset({"fraud"}), "layla", "AE")


class Ring:
    """The installation's signing key, which can be rotated."""

    def __init__(self) -> None:
        self.key = Ed25519PrivateKey.generate()

    def token_signer(self) -> Ed25519PrivateKey:
        return self.key


@pytest.fixture
def ring() -> Ring:
    return Ring()


@pytest.fixture
def stopped() -> set[tuple[str, str]]:
    return set()


@pytest.fixture
def tokens(ring: Ring, stopped: set[tuple[str, str]]) -> WorkloadTokens:
    return WorkloadTokens(ring, lambda tenant, run: (tenant, run) in stopped)


@pytest.fixture
def bench(ring: Ring, tokens: WorkloadTokens) -> Bench:
    said = read_token(tokens.issue(WORK, NOW), ("EdDSA",))
    return Bench(NOW, said.header, said.claims, ring.key, lambda token: tokens.verify(token, NOW))


def test_a_token_says_what_it_was_issued_for(tokens: WorkloadTokens) -> None:
    actor = tokens.whois(tokens.issue(WORK, NOW), NOW)
    assert actor == Actor(
        "run.r7",
        "bank",
        "workload",
        frozenset({"ml-engineer"}),
        frozenset({"fraud"}),
        behalf="layla",
        jurisdiction="AE",
        run="r7",
        zone="dubai",
        expires=NOW + 600,
    )


def test_the_bench_makes_true_tokens(bench: Bench) -> None:
    assert bench.judge(bench.token()).run == "r7"


@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_are_refused(bench: Bench, name: str) -> None:
    with pytest.raises(Unauthenticated):
        bench.judge(FORGERIES[name](bench))


def test_a_token_coded_in_another_way_is_refused(bench: Bench) -> None:
    token, odd = next((token, odd) for n in range(4) if (odd := with_loose_bits(token := bench.saying(pad="x" * n))))
    assert bench.judge(token).run == "r7"
    with pytest.raises(Unauthenticated):
        bench.judge(odd)


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "elsewhere"},
        {"aud": ["falaj", "other"]},
        {"aud": ["other", "falaj"]},
        {"run": "r8"},
        {"run": ...},
        {"zone": ...},
        {"zone": ""},
        {"tenant": ...},
        {"jti": ...},
        {"roles": "ml-engineer"},
        {"roles": [1]},
        {"projects": None},
        {"exp": NOW + MAX_TOKEN_TTL_S + 60},
    ],
)
def test_even_our_own_signature_does_not_excuse_a_wrong_claim(bench: Bench, claims: dict[str, object]) -> None:
    with pytest.raises(Unauthenticated):
        bench.judge(bench.saying(**claims))


def test_even_our_own_signature_gives_no_governing_role(bench: Bench) -> None:
    assert bench.judge(bench.saying(roles=list(ROLES))).roles == WORK_ROLES


def test_a_token_serves_one_audience(tokens: WorkloadTokens) -> None:
    token = tokens.issue(WorkloadIdentity("r7", "dubai", "bank", frozenset(), audience="online"), NOW)
    assert tokens.verify(token, NOW, "online").run == "r7"
    with pytest.raises(Unauthenticated):
        tokens.verify(token, NOW)
    with pytest.raises(Unauthenticated):
        tokens.whois(token, NOW)


def test_tokens_of_two_installations_do_not_cross(tokens: WorkloadTokens) -> None:
    other = WorkloadTokens(Ring(), lambda tenant, run: False)
    for mine, theirs in ((tokens, other), (other, tokens)):
        token = mine.issue(WORK, NOW)
        assert mine.verify(token, NOW).run == "r7"
        with pytest.raises(Unauthenticated, match="not of this installation"):
            theirs.verify(token, NOW)


def test_another_installations_key_id_on_a_strangers_signature_is_refused(ring: Ring, bench: Bench) -> None:
    with pytest.raises(Unauthenticated, match="signature"):
        bench.judge(bench.by(STRANGER_ED, kid=compute_key_id(ring.key.public_key())))


def test_it_ends(tokens: WorkloadTokens) -> None:
    token = tokens.issue(WORK, NOW, ttl_s=MAX_TOKEN_TTL_S)
    assert tokens.verify(token, NOW + MAX_TOKEN_TTL_S - 1).run == "r7"
    with pytest.raises(Unauthenticated, match="expired"):
        tokens.verify(token, NOW + MAX_TOKEN_TTL_S)


@pytest.mark.parametrize("ttl_s", [MAX_TOKEN_TTL_S + 1, 0, -1, float("nan")])
def test_it_cannot_be_asked_to_live_long(tokens: WorkloadTokens, ttl_s: float) -> None:
    with pytest.raises(Invalid):
        tokens.issue(WORK, NOW, ttl_s=ttl_s)


@pytest.mark.parametrize("role", sorted(set(ROLES) - WORK_ROLES))
def test_it_cannot_carry_a_role_that_governs(tokens: WorkloadTokens, role: str) -> None:
    with pytest.raises(Invalid, match=role):
        tokens.issue(WorkloadIdentity("r7", "dubai", "bank", frozenset({role})), NOW)


@pytest.mark.parametrize("missing", ["run", "zone", "tenant", "audience"])
def test_it_is_bound_to_all_it_must_be_bound_to(tokens: WorkloadTokens, missing: str) -> None:
    whole = {"run": "r7", "zone": "dubai", "tenant": "bank", "audience": "falaj", missing: ""}
    with pytest.raises(Invalid):
        tokens.issue(WorkloadIdentity(roles=frozenset(), **whole), NOW)  # type: ignore[arg-type]


def test_a_runs_tokens_can_be_revoked(tokens: WorkloadTokens, stopped: set[tuple[str, str]]) -> None:
    mine, other = tokens.issue(WORK, NOW), tokens.issue(WorkloadIdentity("r8", "dubai", "bank", frozenset()), NOW)
    stopped.add(("bank", "r7"))
    with pytest.raises(Unauthenticated, match="revoked"):
        tokens.verify(mine, NOW)
    assert tokens.verify(other, NOW).run == "r8"


def test_rotation_lets_older_tokens_end_in_peace(ring: Ring, tokens: WorkloadTokens) -> None:
    old = tokens.issue(WORK, NOW)
    ring.key = Ed25519PrivateKey.generate()
    new = tokens.issue(WORK, NOW + 60)
    assert jwt.get_unverified_header(old)["kid"] != jwt.get_unverified_header(new)["kid"]
    assert tokens.verify(old, NOW + 61).run == tokens.verify(new, NOW + 61).run == "r7"


def test_no_two_tokens_are_the_same(tokens: WorkloadTokens) -> None:
    assert len({tokens.issue(WORK, NOW) for _ in range(20)}) == 20


def test_what_others_made_is_left_to_others(tokens: WorkloadTokens, bench: Bench) -> None:
    assert tokens.whois("fj_abc_def", NOW) is None
    assert tokens.whois(bench.saying(iss="https://login.example"), NOW) is None


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    tokens = WorkloadTokens(Ring(), lambda tenant, run: False)
    for token in (text, f"eyJ{text}", f"eyJ.{text}.x"):
        try:
            assert tokens.whois(token, NOW) is None
        except Unauthenticated:
            assert is_signed_token(token)


names = st.frozensets(st.sampled_from(ROLES), max_size=5)
projects = st.one_of(st.just(ANY_VALUE), st.frozensets(st.sampled_from(["fraud", "health", "risk"]), max_size=3))


@given(names, names, projects, projects)
def test_a_workload_never_has_more_than_its_person(
    mine: frozenset[str], wanted: frozenset[str], my_projects: frozenset[str], its_projects: frozenset[str]
) -> None:
    person = Actor("layla", "bank", roles=mine, projects=my_projects)
    work = limit_to_delegator(person, WorkloadIdentity("r7", "dubai", "other", wanted, its_projects))
    assert work.tenant == "bank"
    assert work.behalf == "layla"
    assert work.roles == mine & wanted & WORK_ROLES
    for project in ("fraud", "health", "risk", "new"):
        both = all(p == ANY_VALUE or project in p for p in (my_projects, its_projects))
        assert (work.projects == ANY_VALUE or project in work.projects) is both
