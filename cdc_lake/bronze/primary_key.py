"""Which primary key a topic's records have, where records say it themselves.

A registry or the settings speak for the connector. In JSON each record brings the columns of its key along, so one
record could give its table another primary key, which stops silver. Only many records can.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from cdc_lake.decode.types import same_key

MIN_RECORDS = 10
"""Of a batch: so many JSON records change the primary key, if fewer have the one before."""


@dataclass
class _Key:
    columns: Mapping[str, str]
    references: list[str] = field(default_factory=list)


def primary_key(
    known: Mapping[str, str],
    given: Mapping[str, Mapping[str, str]],
    said: Mapping[str, Mapping[str, str]],
    count: Callable[[Collection[str]], Mapping[str, int]],
    *,
    takes_any: bool = False,
) -> tuple[Mapping[str, str], set[str]]:
    """The primary key of a topic behind a batch of its records.

    Args:
        known: the columns of the key before, name to Spark type; empty if that is not known.
        given: the same by reference, of those whose schemas a registry or the settings give.
        said: the same of those whose records say it themselves.
        count: from references to the number of their records; asked only if some say another key.
        takes_any: whether one record is enough.

    Returns:
        The key's columns, as wide as all need them, and the references whose records have another key.
    """
    keys = [_Key(known)] if known else []
    for reference in sorted(given):
        _add(keys, reference, given[reference])
    now = next((key for key in reversed(keys) if key.references), keys[0] if keys else None)
    others: list[_Key] = []
    for reference in sorted(said):
        if not _is_added(keys, reference, said[reference]):
            _add(others, reference, said[reference])
    if others:
        numbers = count([one for key in (*keys, *others) for one in key.references])

        def records(key: _Key) -> int:
            return sum(numbers.get(reference, 0) for reference in key.references)

        most = max(others, key=records)
        before = max(map(records, keys), default=0)
        if now is None or takes_any or records(most) >= max(MIN_RECORDS, before + 1):
            now = most
            others = [] if takes_any else [key for key in others if key is not most]
    return now.columns if now else {}, {one for key in others for one in key.references}


def _add(keys: list[_Key], reference: str, columns: Mapping[str, str]) -> None:
    if not _is_added(keys, reference, columns):
        keys.append(_Key(columns, [reference]))


def _is_added(keys: list[_Key], reference: str, columns: Mapping[str, str]) -> bool:
    """Add a reference to the key that it has, if that is among these."""
    for key in keys:
        if (both := same_key(key.columns, columns)) is not None:
            key.columns = both
            key.references.append(reference)
            return True
    return False
