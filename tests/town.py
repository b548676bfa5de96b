"""A small town for tests: a real house on a folder, two tenants, two zones, people with roles. Nothing is faked."""

from pathlib import Path
from typing import Any

from falaj.core.context import Actor
from falaj.core.errors import FalajError
from falaj.server import LocalClient, Server, load_settings
from tests.people import enroll, enroll_tenant, officer_token, register_officer

TEAM = {
    "amal": "data-scientist",
    "salem": "data-steward",
    "mona": "ml-engineer",
    "badr": "approver",
    "bilal": "approver",
    "dana": "dpo",
    "omar": "auditor",
    "sami": "security-officer",
    "ola": "operator",
}
LABEL = "AE-PDPL,sensitive,purpose=fraud"


class Town:
    """`town.as_("amal")` is the platform as amal of the bank sees it; `town.as_("sara")` is of the clinic."""

    def __init__(self, home: Path, **overrides: Any) -> None:
        settings = load_settings(str(home), {"zone": "ae-dubai", **overrides})
        self.house = Server(settings)
        self.tokens = {"admin": self.house.bootstrap()}
        admin = self.as_("admin")
        store = overrides.get("foreign", f"dir:{home}/eu-west")
        admin.zones.add("eu-west", "IE-D", "IE", regimes=("EU-GDPR",), max_class=2, store=store)
        for tenant, boss in (("bank", "fatima"), ("clinic", "yusuf")):
            self.tokens[boss] = enroll_tenant(admin, tenant, boss)
        register_officer(admin, self.house.appoint_first_officer())
        for name, role in TEAM.items():
            self.tokens[name] = enroll(self.as_("fatima"), name, (role,), jurisdiction="AE")
        self.tokens["officer"] = officer_token(self.as_("fatima"))
        self.tokens["sara"] = enroll(self.as_("yusuf"), "sara", ("data-scientist",), jurisdiction="AE")

    def actor(self, name: str) -> Actor:
        """Who the house takes this person for."""
        return self.house.authenticate(self.tokens[name])

    def as_(self, name: str, purpose: str = "fraud") -> Any:
        """The platform with this person bound."""
        return LocalClient(self.house, self.actor(name), purpose)

    def events(self, tenant: str = "bank", **where: str) -> list[Any]:
        """What the log says, oldest first."""
        return [fact.event for fact in self.house.ledger.tail(tenant=tenant, limit=10_000, **where)]

    def close(self) -> None:
        """Close the house."""
        self.house.close()


def refusal(act: Any) -> FalajError:
    """The error that `act` raises; that it raises none is a failure."""
    try:
        act()
    except FalajError as error:
        return error
    raise AssertionError("it was allowed")
