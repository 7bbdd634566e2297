"""Fold many keys: apply `rules.step` to a stream of Arrow batches, sorted by key and Kafka position.

A key's *run* is its part of the stream: its row in silver and its entry in the side table, if any, then its events. If
each event of a run is newer than the one before, all are applied and the last determines the row; that is computed by
index arithmetic over whole batches (`whole_batch`). Other runs go through `step`, event by event (`key_run`). A run may
span batches, with its state carried over, so keys with any number of events need the memory of one batch only.

Nothing is decoded here. Values are represented by the record that contains them, and its bytes are passed through.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from cdc_lake.fold.key_run import KeyRun, RunPieces
from cdc_lake.fold.stream import Rules
from cdc_lake.fold.whole_batch import WholeBatch


def fold(batches: Iterable[pa.RecordBatch], rules: Rules) -> Iterator[pa.RecordBatch]:
    """Fold the runs of a sorted stream.

    Columns in: `key`; `pk`, struct of the key columns; `rank`; `kafka_position`; `op`; `is_streaming`; `order`, for a
    row in silver the key's; `read_at`, for a row in silver that a snapshot wrote, the position at which it was read;
    `unsent`, the large columns without a value; `key_change`, for a side entry the key change that began the lifetime;
    `seen`, for a side entry the last processed Kafka position; `snapshot`; `is_new`, whether the event is new to
    silver; `refold`, whether to refold the key from its first event; `raw_value`, `value_schema`, `framing`.

    Columns out, one *piece* of role `row` for each key: `key`, `pk`; `op`, `snapshot`, `kafka_position`, `source` of
    the last applied event; `order`, the key's; `seen`, the last processed Kafka position, if it differs from
    `kafka_position` and the last whole-table event; `moved_by`, the key change that may provide the `missing` columns;
    `kept`, the large columns that keep silver's value; `keeps_rest`, whether the other columns do; the record with the
    values, null if none was sent; `has_row`, `has_stored`, `has_memory`, whether there shall be a row, is one, is a
    side entry; `is_changed`; `is_refolded`, whether the key was refolded without the stored state; `is_out_of_order`,
    whether an event is before the last processed one, so that the key must be refolded (in a comparison: whether events
    were ignored because silver has more); `has_duplicates`, whether silver has several rows of the key; `is_compared`,
    `is_log_reset`, whether source positions were comparable, and went back while the time went forward; `is_unplaced`,
    whether a snapshot row without a position replaced a row that changes without a position had written; `counting`,
    `stale`, the numbers of new events that were applied and ignored; of the ignored ones `outdated`, the snapshot rows,
    and `behind_clock`, those that only their time made stale, at most `behind_ms` before the time of the last event.

    Pieces of role `values` have a further record with `columns` of the row. Pieces of role `lifetime` have the values
    that a key change passes on: `key_change`, `kafka_position`, `moved_by`, `kept`, and `columns` in the record.
    """
    open_run, pk = None, pa.null()
    for batch in batches:
        if not batch.num_rows:
            continue
        table = WholeBatch(batch, rules)
        is_slow = table.is_slow.copy()
        is_slow[-1] = True  # it may continue in the next batch
        if open_run is not None and open_run.key == table.first_key:
            is_slow[0] = True
        pk = batch.schema.field("pk").type
        out = RunPieces(pk)
        for number, row in table.rows(is_slow):
            if open_run is None or open_run.key != row["key"]:
                if open_run is not None:
                    out.end(open_run)
                open_run = KeyRun(row["key"], rules)
            open_run.take(row, batch, number)
        if (fast := table.fast_pieces(~is_slow)) is not None:
            yield fast
        if (slow := out.batch()) is not None:
            yield slow
    if open_run is not None:
        out = RunPieces(pk)
        out.end(open_run)
        if (slow := out.batch()) is not None:
            yield slow
