"""Identifies the operating-system user who owns the folder of an embedded platform."""

import os
import pwd
from contextlib import suppress
from pathlib import Path

from falaj.core.context import SYSTEM_TENANT, Actor
from falaj.core.errors import Denied
from falaj.govern.roles import PERSON_ROLES


def identify_folder_owner(home: str, jurisdiction: str) -> Actor:
    """Return the user of this process as the owner of a folder and of everything embedded in it; Denied for others."""
    user_id = os.getuid()
    if Path(home).stat().st_uid != user_id:
        raise Denied("this folder belongs to another user", "use a folder of your own, or a token")
    name = "uid"
    with suppress(KeyError):
        name = pwd.getpwuid(user_id).pw_name
    subject = f"os:{user_id}"
    return Actor(
        f"os-{name}",
        SYSTEM_TENANT,
        roles=PERSON_ROLES,
        subject=subject,
        jurisdiction=jurisdiction,
        strong=True,
        owns_folder=True,
    )
