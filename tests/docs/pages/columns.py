"""Tables of cdc_lake's own columns: names, types and the comments that explain them in `cdc_lake/columns.py`."""

import inspect
import re
from collections.abc import Iterator, Mapping

from cdc_lake import columns

from .markdown import code, table

_ROW = re.compile(r'^    (?:"(\w+)"|([A-Z]+)): .*  # (.+)$', re.MULTILINE)


def _meanings(name: str) -> Iterator[tuple[str, str]]:
    """The columns of a dict of `columns.py`, each with its comment."""
    source = inspect.getsource(columns).partition(f"\n{name} = {{\n")[2].partition("\n}\n")[0]
    for column, constant, comment in _ROW.findall(source):
        yield column or getattr(columns, constant), comment


def _table(name: str) -> str:
    types: Mapping[str, str] = getattr(columns, name)
    meanings = dict(_meanings(name))
    assert meanings.keys() == types.keys(), f"columns.{name}: comment on {types.keys() ^ meanings.keys()}"
    return table(("column", "type", "meaning"), [(code(one), code(types[one]), meanings[one]) for one in types])


def bronze_columns() -> str:
    """Bronze's columns."""
    return _table("BRONZE")


def silver_columns() -> str:
    """The columns that silver adds to the source's."""
    return _table("SILVER_META")


def side_columns() -> str:
    """The columns of a side table."""
    return _table("SIDE")
