"""Fixtures that several folders of tests share."""

from collections.abc import Iterator

import pytest

from cdc_lake.embedded.stack import Stack


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The real servers, started once for all tests that ask; they end with the tests, however those end."""
    stack = Stack(tmp_path_factory.mktemp("stack"))
    stack.start(detach=False)
    yield stack
    stack.delete()
