"""The rules that say which Unix user a person is on a Slurm site."""

import pytest

from falaj.backends.unix_users import map_unix_user, read_unix_user_rules
from falaj.core.errors import Invalid


@pytest.mark.parametrize(
    ("rules", "person", "unix_user"),
    [
        ("oidc.*=*", "oidc.amal", "amal"),
        ("oidc.*=*", "badr", "badr"),
        ("loader=svc_loader,oidc.*=*", "loader", "svc_loader"),
        ("*@clinic=clinic,*=*", "sara@clinic", "clinic"),
        ("*@clinic=*", "sara@clinic", "sara"),
        ("", "amal", "amal"),
    ],
)
def test_first_rule_that_fits_names_the_user(rules: str, person: str, unix_user: str) -> None:
    assert map_unix_user(person, read_unix_user_rules(rules)) == unix_user


@pytest.mark.parametrize("text", ["amal", "amal=", "=amal", "a*b*=x", "amal=*", "amal=../root", "amal=Root user"])
def test_rule_that_is_no_pair_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="PERSON=UNIX_USER"):
        read_unix_user_rules(text)
