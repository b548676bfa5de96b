"""Erasures in tests: the second person who approves a plan, and a platform whose client dies after some calls."""

from collections.abc import Callable
from typing import Any

from falaj.core.ref import Ref
from tests.town import Town


def approve(town: Town, request: Ref, who: str = "badr") -> None:
    """Approve the plan of an erasure as another person than made it."""
    plan = town.as_("dana").privacy.plan(request)
    town.as_(who).approvals.give(plan.approval, plan.digest)


def erase_approved(town: Town, request: Ref, subject: str, **more: Any) -> Any:
    """Plan, approve and execute an erasure."""
    salem = town.as_("salem")
    assert salem.privacy.erase(request, subject, plan=True).state == "planned"
    approve(town, request)
    return salem.privacy.erase(request, subject, **more)


class Killed(BaseException):
    """What kill -9 is to the code that runs: nothing after it."""


class FusedClient:
    """The platform as its caller sees it, until a number of calls were made."""

    def __init__(self, client: Any, fuse: int) -> None:
        self._client, self.fuse = client, fuse
        self.bytes, self.progress, self.address = client.bytes, client.progress, client.address

    def __getattr__(self, service: str) -> Any:
        return _FusedService(getattr(self._client, service), self)


class _FusedService:
    def __init__(self, service: Any, client: FusedClient) -> None:
        self._service, self._client = service, client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self._service, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = operation(*args, **kwargs)
            self._client.fuse -= 1
            if self._client.fuse < 0:
                raise Killed
            return answer

        return call
