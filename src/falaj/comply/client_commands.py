"""What an officer asks of the platform: evidence for a regime, the census, access reviews, findings."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

from falaj.comply import copy_census as counting
from falaj.comply import findings as looking
from falaj.comply import regime_pack
from falaj.comply.access_reviews import list_account_accesses
from falaj.comply.platform_snapshot import PlatformSnapshot
from falaj.comply.records import AccountAccess, CopyCensus, EvidenceReport, FindingsReport
from falaj.core.client_command import Client, client_command
from falaj.core.errors import Invalid


@client_command
def evidence(
    client: Client,
    regime: Annotated[str, "a control map, for example AE-PDPL, AE-CBUAE, EU-AI-ACT, ISO-27001 or SOC-2"],
    from_: Annotated[str, "the first day, for example 2026-01-01; the beginning when empty"] = "",
    to: Annotated[str, "the last day, or an exact moment; now when empty or still to come"] = "",
    out: Annotated[str, "the file to write"] = "evidence.zip",
    enclose: Annotated[tuple[str, ...], "files to add, each FILE or KIND@DATE=FILE: training@2026-05-01=a.pdf"] = (),
    zone: Annotated[str, "the zone whose log is meant; your own when empty"] = "",
) -> EvidenceReport:
    """Make the evidence pack of a period: how each control operated, its samples and exceptions, and the log's proof.

    The same period of the same platform gives the same bytes. It is evidence, not certification.

    Example:
        falaj audit evidence AE-PDPL --from 2026-01-01 --to 2026-12-31 --out pack.zip
        falaj audit evidence --regime ISO-27001 --enclose sbom@2026-11-01=sbom.json --out iso.zip
    """
    since, until = _parse_moment(from_, is_last_day=False), _parse_moment(to, is_last_day=True)
    if until and until < since:
        raise Invalid("the time ends before it begins", "--from must not be after --to")
    path = Path(out)
    if not path.parent.is_dir():
        raise Invalid("there is no folder for the pack", "make it, or name another file with --out")
    return regime_pack.build_pack(client, regime, path, since, until, zone, enclose)


@client_command
def census(client: Client) -> CopyCensus:
    """Prove that no copy of anything lies where it may not: every copy is judged again, by today's rules.

    Exit code 1 when any lies wrongly. What cannot be seen from here is listed as unseen.

    Example:
        falaj audit census
    """
    return counting.count_copies(client)


@client_command
def review(
    client: Client, all_: Annotated[bool, "those, too, that nobody needs to look at"] = True
) -> tuple[AccountAccess, ...]:
    """Show who has what: roles, when last used, roles never used, living tokens, and the newest answer.

    Answer for each with `falaj audit answer`; nobody answers for themselves.

    Example:
        falaj audit review
        falaj audit review --no-all
    """
    account_accesses = list_account_accesses(client, PlatformSnapshot(client), time.time())
    return tuple(account_access for account_access in account_accesses if all_ or account_access.look)


@client_command
def findings(client: Client) -> FindingsReport:
    """Look for what is not as it should be, with its owner, since when, and how to fix it. Exit code 1 if any is high.

    Example:
        falaj audit findings --json
    """
    return looking.collect_findings(client)


def _parse_moment(text: str, *, is_last_day: bool) -> float:
    """A day (its start, or its end), or a moment with its time; 0 for nothing."""
    if not text:
        return 0.0
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid(f"{text[:40]!r} is no day", "2026-12-31, or 2026-12-31T12:00:00Z") from error
    aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return (aware + timedelta(days=1) if is_last_day and len(text) == 10 else aware).timestamp()
