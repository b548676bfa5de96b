"""What the desks of keys and secrets give: names, ages and states, never material."""

from falaj.core.data import dataclass
from falaj.core.ref import Ref


@dataclass(frozen=True, slots=True)
class KeyView:
    """One key of the hierarchy, seen from outside."""

    key: Ref
    purpose: str
    zone: str
    current: int
    versions: tuple[int, ...]
    made: float
    age_days: float
    under: str
    """What wraps it: the root, the zone's key or the tenant's."""
    destroyed: bool = False


@dataclass(frozen=True, slots=True)
class KeyPage:
    """Some keys, where the root key is held, and the cursor of the next page."""

    keys: tuple[KeyView, ...]
    custody: str
    next: str = ""


@dataclass(frozen=True, slots=True)
class Rotation:
    """One rotation from its start to the end of the versions before it."""

    scope: str
    tenant: str
    zone: str
    version: int
    phase: str
    """root: a new root version is to be made; sweep: rewrapping; wait: until nobody can hold an old key; done."""
    since: float
    round_since: float
    moved: int = 0
    moved_round: int = 0
    cursor: str = ""
    hurry: bool = False
    finished: float = 0.0


@dataclass(frozen=True, slots=True)
class SecretView:
    """A secret, seen from outside."""

    secret: Ref
    zone: str
    current: int
    versions: tuple[int, ...]
    made: float
    reference: str
    """What goes into specs in place of the value: secret://tenant/zone/project/name#version."""
    use: tuple[str, ...] = ()
    """Whose jobs may use the value: person:, role: and project:, beside its creator and who may read it."""


@dataclass(frozen=True, slots=True)
class SecretPage:
    """Some secrets and the cursor of the next page."""

    secrets: tuple[SecretView, ...]
    next: str = ""
