"""Compare rows by key and column, and separate known losses from differences."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from cdc_lake.reconcile.canonical import Cell, Key, Shared, SharedColumn

NEVER_THERE: Final = "unchanged values that were not sent and that silver never had (`__unavailable`)"

Kind = Literal["missing", "extra", "changed", "repeated"]


class TextRow(NamedTuple):
    """A row as canonical texts.

    Attributes:
        texts: the texts of the compared columns, in order.
        unavailable: names of silver's columns whose values it never received.
    """

    key: Key
    texts: tuple[str | None, ...]
    unavailable: tuple[str, ...] = ()


class RowDifference(NamedTuple):
    """A key whose rows differ: missing in silver, extra there, repeated there, or changed.

    Attributes:
        columns: for a changed row, the source's names of the columns that differ.
    """

    kind: Kind
    key: Key
    columns: tuple[str, ...] = ()


@dataclass
class Differences:
    """Counts and samples of differences.

    Attributes:
        kept: maximum number of samples.
        counts: differences by kind, without known losses.
        losses: values lost before Kafka or never sent, and quarantined rows, by kind of loss.
        first: the first differences.
        lost_keys: number of missing keys that may have been sent as other rows' keys.
    """

    shared: Shared
    kept: int
    counts: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    first: list[RowDifference] = field(default_factory=list)
    lost_keys: int = 0

    def compare(self, source: Iterator[TextRow], silver: Iterator[TextRow]) -> None:
        """Compare the rows of both sides, which stream in key order."""
        here, there = next(source, None), next(silver, None)
        while here or there:
            if there is None or (here is not None and here.key < there.key):  # type: ignore[operator]
                assert here is not None
                self._add_missing(here.key)
                here = next(source, None)
                continue
            if here is None or there.key < here.key:  # type: ignore[operator]
                self._add(RowDifference("extra", there.key))
                there = self._next(silver, there)
                continue
            if here.texts != there.texts:
                self._compare_values(here, there)
            here, there = next(source, None), self._next(silver, there)

    def _next(self, silver: Iterator[TextRow], last: TextRow) -> TextRow | None:
        """Silver's next row with another key."""
        following = next(silver, None)
        while following is not None and following.key == last.key:
            self._add(RowDifference("repeated", last.key))
            following = next(silver, None)
        return following

    def _add_missing(self, key: Key) -> None:
        loss = self.shared.loss_of(key)
        if loss:
            self.losses[loss] += 1
            return
        self._add(RowDifference("missing", key))
        self.lost_keys += self.shared.may_be_another_key(key)

    def _compare_values(self, here: TextRow, there: TextRow) -> None:
        changed = []
        for one, source, lake in zip(self.shared.others, here.texts, there.texts, strict=True):
            if source == lake:
                continue
            loss = self._loss(one, source, lake, there.unavailable)
            if loss is None:
                changed.append(one.column.name)
            else:
                self.losses[loss] += 1
        if changed:
            self._add(RowDifference("changed", here.key, tuple(changed)))

    def _loss(
        self, one: SharedColumn, source: str | None, lake: str | None, unavailable: tuple[str, ...]
    ) -> str | None:
        if lake is None and not one.rules.keys().isdisjoint(unavailable):
            return NEVER_THERE
        here, there = (None if text is None else one.rule.read(text) for text in (source, lake))
        return self.shared.table.loss(Cell(one.column.name, here, there))

    def _add(self, difference: RowDifference) -> None:
        self.counts[difference.kind] += 1
        if len(self.first) < self.kept:
            self.first.append(difference)
