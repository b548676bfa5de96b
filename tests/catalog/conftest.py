"""One town a file for tests of the catalog's life, and a project of its own for each test."""

import itertools
from collections.abc import Iterator

import pytest

from tests.town import Town

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def shared_town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """A house that the tests of one file share."""
    made = Town(tmp_path_factory.mktemp("town"))
    yield made
    made.close()


@pytest.fixture
def project() -> str:
    """A project that no other test uses."""
    return f"p{next(_NUMBERS)}"
