"""The chapters of the ground floor: people, labels, zones, four eyes, proof."""

import subprocess  # nosec B404
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from falaj.core.own_environment import own_environment
from falaj.demo.stage import Stage

CUSTOMERS = b"id,name,emirate,balance\n" + b"".join(
    b"%d,customer-%d,Dubai,%d\n" % (i, i, i * 37 % 9000) for i in range(2000)
)
BLOB = "blob:fraud/customers"
CONTRACT = "document:fraud/processor-contract"


@dataclass(frozen=True, slots=True)
class Chapter:
    """A title, why it matters, and what happens; `run` gives the outcome in a few words."""

    title: str
    why: str
    run: Callable[[Stage], str]


def start(stage: Stage) -> str:
    """falaj up."""
    seconds = stage.start()
    who = stage.as_("admin").people.whoami()
    stage.say(f"falaj up → {stage.url}, sign-in on, an admin token printed once")
    stage.say(f"the token belongs to [bold]{who.id}[/bold], who may {', '.join(who.roles)} and read no data")
    return f"ready in {seconds:.1f} s"


def people(stage: Stage) -> str:
    """Tenants, zones, people."""
    admin = stage.as_("admin")
    admin.zones.add("eu-west", "IE-D", "IE", regimes=("EU-GDPR",), max_class=2, store=f"dir:{stage.home}/eu-west")
    for zone in admin.zones.list():
        stage.say(f"zone [bold]{zone.id}[/bold]: law of {zone.jurisdiction}, cleared for {', '.join(zone.regimes)}")
    for tenant, boss in (("bank", "fatima"), ("clinic", "yusuf")):
        stage.enroll(boss, admin.people.add_tenant(tenant, boss).code)
    stage.enroll("sami", admin.people.appoint_officer("bank", "sami").code)
    stage.enroll("hessa", admin.people.appoint_officer("clinic", "hessa").code)
    bank = stage.as_("fatima")
    team = {"amal": "data-scientist", "salem": "data-steward", "badr": "approver", "dana": "dpo", "omar": "auditor"}
    for name, role in team.items():
        confirmation = stage.enroll(name, bank.people.add(name, (role,), jurisdiction="AE").code)
        if confirmation:
            stage.as_("sami").approvals.give(confirmation)
    sara = stage.enroll("sara", stage.as_("yusuf").people.add("sara", ("data-scientist",), jurisdiction="AE").code)
    stage.as_("hessa").approvals.give(sara)
    stage.say("each redeemed a one-time code: no administrator ever held their tokens")
    stage.say(
        "sami, the bank's security officer, confirmed who they are: fatima alone invents no reader and no approver"
    )
    stage.say("tenant bank: " + ", ".join(f"{name} ({role})" for name, role in team.items()))
    stage.say("tenant clinic: sara (data-scientist), confirmed by hessa, its security officer")
    return "2 zones, 2 tenants, 10 people"


def publish(stage: Stage) -> str:
    """Bytes under a label."""
    amal = stage.as_("amal", purpose="fraud")
    ref = amal.store.put(BLOB, CUSTOMERS, label="AE-PDPL,sensitive,purpose=fraud")
    same = amal.store.get(ref).read() == CUSTOMERS
    stage.made["blob"] = ref
    stage.say(f"amal puts {len(CUSTOMERS):,} bytes → [bold]{ref}[/bold] under AE-PDPL, sensitive, for fraud only")
    stage.say(f"read back and compared: {'the same bytes' if same else 'DIFFERENT'}; on disk there is ciphertext only")
    return str(ref)


def walls(stage: Stage) -> str:
    """Who may not see it."""
    other = stage.refused(lambda: stage.as_("sara", "fraud").store.get(BLOB))
    stage.say(f"sara of the clinic: [yellow]{other.code}[/yellow], {other.message}")
    boss = stage.refused(lambda: stage.as_("fatima", "fraud").store.get(BLOB))
    stage.say(f"fatima, the bank's administrator: [yellow]{boss.code}[/yellow], {boss.message}")
    purpose = stage.refused(lambda: stage.as_("amal", "marketing").store.get(BLOB))
    stage.say(f"amal, for marketing: [yellow]{purpose.code}[/yellow], {purpose.message}")
    return "3 of 3 refused, each recorded"


def abroad(stage: Stage) -> str:
    """The copy that is refused."""
    refusal = stage.refused(lambda: stage.as_("amal", "fraud").store.copy(BLOB, to="eu-west"))
    stage.say(f"amal copies to eu-west: [yellow]{refusal.code}[/yellow]")
    stage.say(f"why: {refusal.message}")
    stage.say(f"what would allow it: {refusal.hint}")
    return "refused, with the way to get it"


def four_eyes(stage: Stage) -> str:
    """A grant and two people."""
    salem = stage.as_("salem")
    contract = b"Contract with the processor in Dublin: deletion, audit, no further transfer.\n"
    kept = salem.approvals.add_document(CONTRACT, contract, "Contract with the processor", label="confidential")
    stage.say(f"salem uploads the contract → [bold]{kept.name}[/bold], encrypted, {kept.digest[:20]}…")
    grant = salem.zones.grant(
        "AE-PDPL:23a", "ae-dubai", "eu-west", BLOB, ("fraud",), {"contract": CONTRACT}, {"expires": "90d"}
    )
    stage.say(f"salem proposes a transfer grant on a contract (basis 23a), for 90 days: {grant.state}")
    own = stage.refused(lambda: salem.approvals.give(str(grant.approval), grant.digest))
    stage.say(f"salem approves it himself: [yellow]{own.code}[/yellow], {own.message}")
    read = stage.as_("badr").approvals.open_document(CONTRACT).read() == contract
    stage.say(f"badr opens the contract before deciding: {'the same bytes' if read else 'DIFFERENT'}")
    stage.say("dana, the data protection officer, was notified: without her voice the grant does not count")
    for name in ("badr", "dana"):
        state = stage.as_(name).approvals.give(str(grant.approval), grant.digest)
        stage.say(f"{name} approves exactly {grant.digest[:20]}…: {state.standing.state}")
    copied = stage.as_("amal", "fraud").store.copy(BLOB, to="eu-west")
    stage.say(f"amal copies to eu-west: [green]allowed[/green]; {copied.ref} now lies in {', '.join(copied.zones)}")
    return "two people, one exact digest, allowed"


def prove(stage: Stage) -> str:
    """The auditor's pack."""
    omar = stage.as_("omar")
    pack, verifier = stage.home / "evidence.zip", stage.home / "falaj_verify.py"
    pack.write_bytes(omar.audit.export().read())
    verifier.write_bytes(omar.audit.verifier().read())
    code, words = _verify(verifier, pack)
    stage.say(f"omar exports {pack.stat().st_size:,} bytes of evidence and takes the one-file verifier with him")
    stage.say(f"python falaj_verify.py evidence.zip → exit {code}: [green]{words[0]}[/green]")
    return "verified offline" if code == 0 else "NOT VERIFIED"


def flip(stage: Stage) -> str:
    """One bit."""
    folder = stage.home / "tampered"
    with ZipFile(stage.home / "evidence.zip") as pack:
        pack.extractall(folder)
    events = next((folder / "events").glob("*.jsonl"))
    data = bytearray(events.read_bytes())
    data[len(data) // 2] ^= 1
    events.write_bytes(data)
    code, words = _verify(stage.home / "falaj_verify.py", folder)
    stage.say(f"one bit of {len(data) * 8:,} flipped → exit {code}: [yellow]{words[0]}[/yellow]")
    return "found, and where" if code == 1 else "NOT FOUND"


def _verify(verifier: Path, pack: Path) -> tuple[int, list[str]]:
    """Run the verifier as the auditor would: apart from us, isolated from everything of ours."""
    command = [sys.executable, "-I", str(verifier), str(pack)]
    done = subprocess.run(  # noqa: S603 # nosec B603
        command, env=own_environment(), capture_output=True, text=True, check=False
    )
    return done.returncode, [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]


CHAPTERS = [
    Chapter("One command", "Everything in one process, nothing to configure, nobody gets in without a token.", start),
    Chapter("Two tenants, two zones, people with roles", "A zone is a legal place, not a data centre.", people),
    Chapter(
        "Bytes under a label", "A label says what the law says, and travels with everything made from it.", publish
    ),
    Chapter("Walls", "Another tenant, an administrator, another purpose: all outside.", walls),
    Chapter("A copy abroad", "Residency is decided before a byte moves, and the refusal teaches.", abroad),
    Chapter("Four eyes", "Two people approve one exact thing; its author is never one of them.", four_eyes),
    Chapter("Proof", "Whoever audits needs one file and no trust in us.", prove),
    Chapter("One bit", "And if anybody had touched it, it would show.", flip),
]
