"""Arrow arrays as numpy's, for index arithmetic over whole batches."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


def to_numpy(array: pa.Array) -> npt.NDArray[Any]:
    """An array's values; it must have no nulls, unless they are strings."""
    found: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def filled(array: pa.Array) -> tuple[npt.NDArray[Any], Bools]:
    """Numbers, with 0 for null, and which are not null."""
    return to_numpy(pc.fill_null(array, 0)), to_numpy(pc.is_valid(array))


def is_in(array: pa.Array, values: Sequence[str]) -> Bools:
    """Which texts are among these values."""
    return to_numpy(pc.is_in(array, pa.array(values)))


def padded(lists: pa.Array) -> tuple[Ints, Bools]:
    """Lists of numbers as rows of a matrix, padded with the smallest number; and which are not null.

    The padding makes [1] less than [1, 0], as in Python.
    """
    lengths = to_numpy(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
    found = np.full((len(lists), int(lengths.max(initial=0))), np.iinfo(np.int64).min)
    # The index of each number in its list. Lengths 2 0 1: 0 1 2 minus the starts 0 0 2 is 0 1 0.
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    found[np.repeat(np.arange(len(lists)), lengths), within] = to_numpy(lists.flatten())
    return found, to_numpy(pc.is_valid(lists))


def last_of_lists(lists: pa.Array) -> Ints:
    """The last number of each list; 0 for null and empty lists."""
    lengths = to_numpy(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
    # The 0 keeps the index valid if no list has a number.
    values = np.append(to_numpy(lists.flatten()), 0)
    return np.where(lengths > 0, values[np.cumsum(lengths) - 1], 0).astype(np.int64)


def lexicographic(columns: Iterable[Sequence[Bools]], rows: int) -> tuple[Bools, Bools]:
    """Row by row, whether one is less than another, and whether they are equal.

    Example: (1, 5) and (2, 3) are decided by the first column, (1, 3) and (1, 5) by the second.

    Args:
        columns: (less, equal) of each column, most significant first.
        rows: number of rows.
    """
    is_less, is_equal = np.zeros(rows, bool), np.ones(rows, bool)
    for is_less_here, is_equal_here in columns:
        is_less |= is_equal & is_less_here
        is_equal &= is_equal_here
    return is_less, is_equal


def named(markers: Bools, names: Sequence[str]) -> pa.Array:
    """For each row, the marked names: [[True, False, True], [False, False, False]] and a, b, c is [[a, c], []]."""
    offsets = np.append(0, np.cumsum(markers.sum(axis=1)))
    chosen = np.nonzero(markers)[1]
    values = pa.array(list(names), pa.string()).take(pa.array(chosen))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
