"""What the tests of the rules share."""

from collections.abc import Mapping
from typing import Any

import pytest
import reference


@pytest.fixture(autouse=True)
def first_lifetime_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the reference take the first lifetime that a key change left and that has a value.

    Silver and the reference take the last one, so in rare logs their result depends on the cut.
    """

    def value_in(
        life: reference.Life,
        name: str,
        moved: Mapping[reference.Move, list[reference.Life]],
        seen: tuple[reference.Life, ...] = (),
    ) -> Any:
        if name in life.sent:
            return life.sent[name]
        for giver in moved.get(life.came_by or (), []):
            if giver not in (*seen, life):
                value = value_in(giver, name, moved, (*seen, life))
                if value is not reference.UNSENT:
                    return value
        return reference.UNSENT

    monkeypatch.setattr(reference, "value_in", value_in)
