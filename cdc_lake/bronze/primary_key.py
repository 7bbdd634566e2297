"""Determines the primary key of a topic's records.

A registry or the settings define the key reliably. In JSON, each record contains the columns of its key, so one bad
record could change the table's primary key, which stops silver. Therefore only many records can change it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from cdc_lake.decode.types import same_key

MIN_RECORDS = 10
"""This many JSON records of a batch change the primary key, if fewer have the previous key."""


@dataclass
class _Key:
    columns: Mapping[str, str]
    references: list[str] = field(default_factory=list)


def primary_key(
    known: Mapping[str, str],
    given: Mapping[str, Mapping[str, str]],
    embedded: Mapping[str, Mapping[str, str]],
    count: Callable[[Collection[str]], Mapping[str, int]],
    *,
    takes_any: bool = False,
) -> tuple[Mapping[str, str], set[str]]:
    """The primary key of a topic after a batch of its records.

    Args:
        known: the key's columns before, name to Spark type; empty if not known.
        given: the key's columns by reference, for schemas from a registry or the settings.
        embedded: the key's columns by reference, for records that contain them.
        count: from references to the number of their records; called only if some have another key.
        takes_any: whether one record is enough to change the key.

    Returns:
        The key's columns, with types wide enough for all records, and the references whose records have another key.
    """
    keys = [_Key(known)] if known else []
    for reference in sorted(given):
        _add(keys, reference, given[reference])
    now = next((key for key in reversed(keys) if key.references), keys[0] if keys else None)
    other_keys: list[_Key] = []
    for reference in sorted(embedded):
        if not _is_added(keys, reference, embedded[reference]):
            _add(other_keys, reference, embedded[reference])
    if other_keys:
        numbers = count([one for key in (*keys, *other_keys) for one in key.references])

        def records(key: _Key) -> int:
            return sum(numbers.get(reference, 0) for reference in key.references)

        most = max(other_keys, key=records)
        before = max(map(records, keys), default=0)
        if now is None or takes_any or records(most) >= max(MIN_RECORDS, before + 1):
            now = most
            other_keys = [] if takes_any else [key for key in other_keys if key is not most]
    return now.columns if now else {}, {one for key in other_keys for one in key.references}


def _add(keys: list[_Key], reference: str, columns: Mapping[str, str]) -> None:
    if not _is_added(keys, reference, columns):
        keys.append(_Key(columns, [reference]))


def _is_added(keys: list[_Key], reference: str, columns: Mapping[str, str]) -> bool:
    """Add a reference to the key that it has. Returns false if that is not among these."""
    for key in keys:
        if (both := same_key(key.columns, columns)) is not None:
            key.columns = both
            key.references.append(reference)
            return True
    return False
