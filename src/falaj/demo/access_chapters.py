"""The chapters of the ground floor: people, labels, zones, four eyes, proof."""

import subprocess  # nosec B404
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from falaj.core.minimal_environment import get_minimal_environment
from falaj.demo.stage import DemoStage

CUSTOMER_CSV = b"id,name,emirate,balance\n" + b"".join(
    b"%d,customer-%d,Dubai,%d\n" % (i, i, i * 37 % 9000) for i in range(2000)
)
BLOB_REF = "blob:fraud/customers"
CONTRACT_REF = "document:fraud/processor-contract"


@dataclass(frozen=True, slots=True)
class DemoChapter:
    """A title, why it matters, and what happens; `run` gives the outcome in a few words."""

    title: str
    why: str
    run: Callable[[DemoStage], str]


def start_platform(stage: DemoStage) -> str:
    """falaj up."""
    seconds = stage.start()
    identity = stage.as_("admin").people.whoami()
    stage.say(f"falaj up → {stage.url}, sign-in on, an admin token printed once")
    stage.say(f"the token belongs to [bold]{identity.id}[/bold], who may {', '.join(identity.roles)} and read no data")
    return f"ready in {seconds:.1f} s"


def add_people(stage: DemoStage) -> str:
    """Tenants, zones, people."""
    admin = stage.as_("admin")
    admin.zones.add("eu-west", "IE-D", "IE", regimes=("EU-GDPR",), max_class=2, store=f"dir:{stage.home}/eu-west")
    for zone in admin.zones.list():
        stage.say(f"zone [bold]{zone.id}[/bold]: law of {zone.jurisdiction}, cleared for {', '.join(zone.regimes)}")
    for tenant, administrator in (("bank", "fatima"), ("clinic", "yusuf")):
        stage.enroll(administrator, admin.people.add_tenant(tenant, administrator).code)
    stage.enroll("sami", admin.people.appoint_officer("bank", "sami").code)
    stage.enroll("hessa", admin.people.appoint_officer("clinic", "hessa").code)
    bank_client = stage.as_("fatima")
    roles_by_name = {
        "amal": "data-scientist",
        "salem": "data-steward",
        "badr": "approver",
        "dana": "dpo",
        "omar": "auditor",
    }
    for name, role in roles_by_name.items():
        confirmation = stage.enroll(name, bank_client.people.add(name, (role,), jurisdiction="AE").code)
        if confirmation:
            stage.as_("sami").approvals.give(confirmation)
    sara_confirmation = stage.enroll(
        "sara", stage.as_("yusuf").people.add("sara", ("data-scientist",), jurisdiction="AE").code
    )
    stage.as_("hessa").approvals.give(sara_confirmation)
    stage.say("each redeemed a one-time code: no administrator ever held their tokens")
    stage.say(
        "sami, the bank's security officer, confirmed who they are: fatima alone invents no reader and no approver"
    )
    stage.say("tenant bank: " + ", ".join(f"{name} ({role})" for name, role in roles_by_name.items()))
    stage.say("tenant clinic: sara (data-scientist), confirmed by hessa, its security officer")
    return "2 zones, 2 tenants, 10 people"


def publish_blob(stage: DemoStage) -> str:
    """Bytes under a label."""
    amal = stage.as_("amal", purpose="fraud")
    ref = amal.store.put(BLOB_REF, CUSTOMER_CSV, label="AE-PDPL,sensitive,purpose=fraud")
    is_same = amal.store.get(ref).read() == CUSTOMER_CSV
    stage.made["blob"] = ref
    stage.say(f"amal puts {len(CUSTOMER_CSV):,} bytes → [bold]{ref}[/bold] under AE-PDPL, sensitive, for fraud only")
    stage.say(
        f"read back and compared: {'the same bytes' if is_same else 'DIFFERENT'}; on disk there is ciphertext only"
    )
    return str(ref)


def try_forbidden_reads(stage: DemoStage) -> str:
    """Who may not see it."""
    tenant_refusal = stage.refused(lambda: stage.as_("sara", "fraud").store.get(BLOB_REF))
    stage.say(f"sara of the clinic: [yellow]{tenant_refusal.code}[/yellow], {tenant_refusal.message}")
    admin_refusal = stage.refused(lambda: stage.as_("fatima", "fraud").store.get(BLOB_REF))
    stage.say(f"fatima, the bank's administrator: [yellow]{admin_refusal.code}[/yellow], {admin_refusal.message}")
    purpose_refusal = stage.refused(lambda: stage.as_("amal", "marketing").store.get(BLOB_REF))
    stage.say(f"amal, for marketing: [yellow]{purpose_refusal.code}[/yellow], {purpose_refusal.message}")
    return "3 of 3 refused, each recorded"


def try_copy_abroad(stage: DemoStage) -> str:
    """The copy that is refused."""
    refusal = stage.refused(lambda: stage.as_("amal", "fraud").store.copy(BLOB_REF, to="eu-west"))
    stage.say(f"amal copies to eu-west: [yellow]{refusal.code}[/yellow]")
    stage.say(f"why: {refusal.message}")
    stage.say(f"what would allow it: {refusal.hint}")
    return "refused, with the way to get it"


def approve_transfer(stage: DemoStage) -> str:
    """A grant and two people."""
    salem = stage.as_("salem")
    contract = b"Contract with the processor in Dublin: deletion, audit, no further transfer.\n"
    document = salem.approvals.add_document(CONTRACT_REF, contract, "Contract with the processor", label="confidential")
    stage.say(f"salem uploads the contract → [bold]{document.name}[/bold], encrypted, {document.digest[:20]}…")
    grant = salem.zones.grant(
        "AE-PDPL:23a", "ae-dubai", "eu-west", BLOB_REF, ("fraud",), {"contract": CONTRACT_REF}, {"expires": "90d"}
    )
    stage.say(f"salem proposes a transfer grant on a contract (basis 23a), for 90 days: {grant.state}")
    refusal = stage.refused(lambda: salem.approvals.give(str(grant.approval), grant.digest))
    stage.say(f"salem approves it himself: [yellow]{refusal.code}[/yellow], {refusal.message}")
    is_same = stage.as_("badr").approvals.open_document(CONTRACT_REF).read() == contract
    stage.say(f"badr opens the contract before deciding: {'the same bytes' if is_same else 'DIFFERENT'}")
    stage.say("dana, the data protection officer, was notified: without her voice the grant does not count")
    for name in ("badr", "dana"):
        state = stage.as_(name).approvals.give(str(grant.approval), grant.digest)
        stage.say(f"{name} approves exactly {grant.digest[:20]}…: {state.standing.state}")
    copied = stage.as_("amal", "fraud").store.copy(BLOB_REF, to="eu-west")
    stage.say(f"amal copies to eu-west: [green]allowed[/green]; {copied.ref} now lies in {', '.join(copied.zones)}")
    return "two people, one exact digest, allowed"


def export_evidence(stage: DemoStage) -> str:
    """The auditor's pack."""
    omar = stage.as_("omar")
    pack, verifier = stage.home / "evidence.zip", stage.home / "falaj_verify.py"
    pack.write_bytes(omar.audit.export().read())
    verifier.write_bytes(omar.audit.verifier().read())
    code, output_lines = _run_verifier(verifier, pack)
    stage.say(f"omar exports {pack.stat().st_size:,} bytes of evidence and takes the one-file verifier with him")
    stage.say(f"python falaj_verify.py evidence.zip → exit {code}: [green]{output_lines[0]}[/green]")
    return "verified offline" if code == 0 else "NOT VERIFIED"


def tamper_evidence(stage: DemoStage) -> str:
    """One bit."""
    folder = stage.home / "tampered"
    with ZipFile(stage.home / "evidence.zip") as pack:
        pack.extractall(folder)
    events = next((folder / "events").glob("*.jsonl"))
    data = bytearray(events.read_bytes())
    data[len(data) // 2] ^= 1
    events.write_bytes(data)
    code, output_lines = _run_verifier(stage.home / "falaj_verify.py", folder)
    stage.say(f"one bit of {len(data) * 8:,} flipped → exit {code}: [yellow]{output_lines[0]}[/yellow]")
    return "found, and where" if code == 1 else "NOT FOUND"


def _run_verifier(verifier: Path, pack: Path) -> tuple[int, list[str]]:
    """Run the verifier as the auditor would: apart from us, isolated from everything of ours."""
    command = [sys.executable, "-I", str(verifier), str(pack)]
    completed = subprocess.run(  # noqa: S603 # nosec B603
        command, env=get_minimal_environment(), capture_output=True, text=True, check=False
    )
    return completed.returncode, [
        line.strip() for line in (completed.stdout + completed.stderr).splitlines() if line.strip()
    ]


CHAPTERS = [
    DemoChapter(
        "One command",
        "Everything in one process, nothing to configure, nobody gets in without a token.",
        start_platform,
    ),
    DemoChapter("Two tenants, two zones, people with roles", "A zone is a legal place, not a data centre.", add_people),
    DemoChapter(
        "Bytes under a label", "A label says what the law says, and travels with everything made from it.", publish_blob
    ),
    DemoChapter("Walls", "Another tenant, an administrator, another purpose: all outside.", try_forbidden_reads),
    DemoChapter("A copy abroad", "Residency is decided before a byte moves, and the refusal teaches.", try_copy_abroad),
    DemoChapter("Four eyes", "Two people approve one exact thing; its author is never one of them.", approve_transfer),
    DemoChapter("Proof", "Whoever audits needs one file and no trust in us.", export_evidence),
    DemoChapter("One bit", "And if anybody had touched it, it would show.", tamper_evidence),
]
