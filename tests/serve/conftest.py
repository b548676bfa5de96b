"""What tests of endpoints' series stand on."""

from collections.abc import Iterator

import pytest

from tests.town import Town


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """A real house with its keys."""
    made = Town(tmp_path_factory.mktemp("town") / "house")
    yield made
    made.close()
