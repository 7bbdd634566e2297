"""Which offsets of a topic to read next: what is unread, the ranges of a batch, and gaps."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import islice
from types import MappingProxyType

from cdc_lake.sources.logs import Span, TopicLog
from cdc_lake.tables.progress import Gap


def continue_from(
    log: TopicLog, offsets: Mapping[str, dict[int, int]], replaced: Mapping[int, int] = MappingProxyType({})
) -> tuple[dict[str, dict[int, int]], tuple[Gap, ...]]:
    """`offsets` with the next offset of each partition of `log` under its id, and the gaps.

    A log that lost its end assigns the same offsets to other records, so what was read becomes a generation of its own.
    """
    if log.id not in offsets:
        lost, ended = list(offsets.items())[-1]
        gone = (
            Gap(topic_id=lost, partition=partition, start=reached, end=None) for partition, reached in ended.items()
        )
        return {**offsets, log.id: _starts(log)}, tuple(gone)
    reached = _starts(log) | offsets[log.id]
    position = {p: min(max(reached[p], span.start), span.end) for p, span in log.partitions.items()} | {**replaced}
    gaps = tuple(
        Gap(topic_id=log.id, partition=p, start=reached[p], end=offset if offset > reached[p] else None)
        for p, offset in position.items()
        if offset != reached[p]
    )
    known_as = f"{log.id}~{len(offsets)}" if any(gap.end is None for gap in gaps) else log.id
    before = {known_as if known == log.id else known: ends for known, ends in offsets.items()}
    return {**before, log.id: position}, gaps


def _starts(log: TopicLog) -> dict[int, int]:
    return {partition: span.start for partition, span in log.partitions.items()}


def describe_loss(log: TopicLog, gap: Gap, position: Mapping[int, int]) -> str:
    """The message about a gap.

    Args:
        position: the next offset of each partition.
    """
    where = f"{log.name}[{gap.partition}]"
    if gap.end is not None:
        return f"{where}: Kafka deleted offsets {gap.start} to {gap.end - 1} before bronze read them"
    if gap.topic_id == log.id and (first := position[gap.partition]) < log.partitions[gap.partition].end:
        return (
            f"{where}: the log lost its end, and offsets {first} to {gap.start - 1} now have other records than bronze "
            f"read; bronze keeps what it read and continues from {first}"
        )
    if gap.topic_id == log.id:
        return f"{where}: the next offset is {gap.start}, but the log now ends at {log.partitions[gap.partition].end}"
    return (
        f"{where}: the topic was re-created (its id was {gap.topic_id}, now {log.id}), "
        f"and all records from offset {gap.start} on are gone"
    )


def batch_spans(
    log: TopicLog, position: Mapping[int, int], reread_to: Mapping[int, int], max_rows: int
) -> Mapping[int, Span]:
    """The next ranges, in total at most `max_rows` offsets, divided evenly; empty if everything is read. With fewer
    offsets than partitions, later batches read the others.

    Offsets that are read again come first, in batches of their own. If the log has offsets at which a range should end,
    a range extends at least to the next of them.
    """
    left = unread(log, position)
    reread_spans = {
        p: Span(span.start, min(span.end, reread_to[p])) for p, span in left.items() if span.start < reread_to.get(p, 0)
    }
    left = dict(islice((reread_spans or left).items(), max_rows))
    share = max_rows // len(left) if left else 0
    return {p: Span(span.start, _end_of_batch(span, share, log.cuts.get(p, ()))) for p, span in left.items()}


def _end_of_batch(span: Span, share: int, cuts: Sequence[int]) -> int:
    wanted = min(span.end, span.start + share)
    if wanted == span.end or not cuts:
        return wanted
    behind = bisect_right(cuts, wanted)
    if cuts[behind - 1] > span.start:
        return cuts[behind - 1]
    return min(cuts[behind], span.end) if behind < len(cuts) else span.end


def lag_by_partition(log: TopicLog, position: Mapping[int, int]) -> dict[str, int]:
    """The number of offsets after `position`, by partition as text."""
    return {str(p): max(span.end - position.get(p, span.start), 0) for p, span in log.partitions.items()}


def unread(log: TopicLog, position: Mapping[int, int]) -> Mapping[int, Span]:
    """The unread offsets of each partition; partitions without any are omitted."""
    left = {p: Span(max(position.get(p, s.start), s.start), s.end) for p, s in log.partitions.items()}
    return {p: span for p, span in left.items() if span.start < span.end}
