"""A laptop that serves: an embedded platform, small models published on it, and the loops running."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import falaj
from falaj.core.ref import Ref
from falaj.serve.records import EndpointView
from falaj.server import LocalClient
from tests.infer import models
from tests.jobs.lab import until
from tests.people import enroll, with_approval

SMALL = {"cpus": 0.1, "memory": "256MiB"}
STAND_IN = ("python", str(Path(__file__).parent / "stand_in.py"))


def forget(here: Any, endpoint: Any, keys: tuple[str, ...], **more: Any) -> Any:
    """Forget callers of an endpoint of an embedded platform: a steward does it, and the folder's owner approves."""
    steward = LocalClient(here.house, here.house.authenticate(enroll(here, "salem", ("data-steward",))))
    return with_approval(lambda: steward.serve.forget(endpoint, keys, **more), steward, here)


class Laptop:
    """`laptop.model()` is a version of a small model; `laptop.show(...)` an endpoint as it stands."""

    def __init__(self, home: Path, here: Any = None) -> None:
        self.home = home
        self.here = here or falaj.connect(str(home / "house"))

    def model(self, name: str = "scorer", seed: int = 7) -> Ref:
        """Another seed is another version."""
        folder = models.mlp(self.home / f"{name}-{seed}", seed=seed)
        ref: Ref = self.here.catalog.publish(f"model:fraud/{name}", str(folder)).ref
        return ref

    def show(self, endpoint: str = "endpoint:fraud/score") -> EndpointView:
        """As it stands now."""
        view: EndpointView = self.here.serve.show(endpoint)
        return view

    def until(self, holds: Any, endpoint: str = "endpoint:fraud/score") -> EndpointView:
        """The endpoint, once this holds of it."""
        view: EndpointView = until(lambda: self.show(endpoint), holds)
        return view

    def pid(self, replica: str) -> int:
        """The process of a replica: the one that knows its job."""
        found = [
            int(one.name)
            for one in Path("/proc").iterdir()
            if one.name.isdigit() and _is_of(one, replica, str(self.home))
        ]
        assert len(found) == 1, found
        return found[0]

    def close(self) -> None:
        """Let every endpoint end its replicas, and close the house."""
        for view in self.here.serve.list().endpoints:
            if view.state != "stopped":
                self.here.serve.stop(view.ref)
        for view in self.here.serve.list().endpoints:
            self.until(lambda one: not one.replicas, str(view.ref))


def _is_of(process: Path, replica: str, home: str) -> bool:
    """Whether a process is this replica of this house; its launcher has no outbox in its environment."""
    with suppress(OSError):
        known = dict(one.partition("=")[::2] for one in (process / "environ").read_text().split("\0"))
        return known.get("FALAJ_JOB") == f"job:fraud/{replica}" and known.get("FALAJ_OUTBOX", "").startswith(home)
    return False


def ready(view: EndpointView, revision: int = 0) -> list[str]:
    """The names of its replicas that answer."""
    return [one.name for one in view.replicas if one.state == "ready" and revision in (0, one.revision)]
