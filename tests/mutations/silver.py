"""Broken rules of silver and of the fold."""

from collections.abc import Mapping

from support.edits import replaced, without_operand

from .mutation import Mutation

SILVER: Mapping[str, Mutation] = {
    "clock-steps-are-not-reported": Mutation(
        "Events that only their time makes stale are ignored without a warning.",
        "pytest tests/engines/test_reported_cases.py -k oracle-flattened-clock-back-at-dst-end",
        replaced("FoldResult.warnings", "totals.behind_ms > _CLOCK_LAG_MS", by="False"),
    ),
    "earlier-records-of-the-batch-are-ignored": Mutation(
        "A value that an earlier record of the batch sent is not decoded.",
        "conformance T1-value-of-an-earlier-update --split none --deletes soft",
        replaced("changes", "{OTHER_VALUES, INHERITED_VALUES}", by="{INHERITED_VALUES}"),
    ),
    "events-of-a-former-key-count": Mutation(
        "Events from before the change of the primary key count.",
        "pytest tests/engines/test_key_changes.py::test_key_change_error_names_the_command_that_rebuilds",
        replaced("has_former_key", "key_from is None or key_from.topic_id not in topics", by="True"),
    ),
    "events-out-of-order-are-not-refolded": Mutation(
        "A key with an event before silver's last one is not refolded.",
        "conformance late-update --split each --deletes soft",
        without_operand("fold_events", "result.totals.out_of_order"),
    ),
    "evolution-policies-are-ignored": Mutation(
        "`schema.evolution: freeze` accepts changes of columns.",
        "pytest tests/unit/test_layout.py::test_policy_error_lists_every_refused_step",
        replaced("check_steps", "step.kind not in _ALLOWED[policy]", by="False"),
    ),
    "hard-deletes-are-forgotten": Mutation(
        "A hard delete writes no entry to the side table.",
        "conformance O8-replay-behind-a-delete --split each --deletes hard",
        without_operand("key_is_remembered", "is_gone"),
    ),
    "inserts-are-of-keys-that-silver-has": Mutation(
        "Rows are appended although silver may have rows of their keys.",
        "pytest tests/engines/test_inserts.py::test_inserts_above_all_keys_are_appended",
        replaced("_have_new_keys", "highest is None or lowest > highest", by="True"),
    ),
    "inserts-have-several-events-of-a-key": Mutation(
        "Events of one key are appended as several rows.",
        "pytest tests/engines/test_inserts.py::test_inserts_above_all_keys_are_appended",
        replaced("_have_new_keys", 'F.count_distinct(F.xxhash64("key"))', by='F.count("key")'),
    ),
    "inserts-ignore-apply-as-deletes": Mutation(
        "Rows are appended that `merge.apply_as_deletes` deletes.",
        "pytest tests/engines/test_inserts.py::test_inserts_that_apply_as_deletes_are_merged",
        without_operand("Batch.may_be_inserts", "settings.merge.apply_as_deletes"),
    ),
    "inserts-ignore-ends-of-snapshots": Mutation(
        "Rows are appended that the end of a snapshot removes.",
        "pytest tests/engines/test_inserts.py::test_inserts_up_to_the_end_of_a_snapshot_are_merged",
        without_operand("Batch.may_be_inserts", "self.table_events.events"),
    ),
    "inserts-ignore-key-changes": Mutation(
        "Appended rows forget which row passes its values on.",
        "conformance T4-chain-read-backwards --split each --deletes soft",
        without_operand("Batch.may_be_inserts", "counts.key_changes"),
    ),
    "inserts-ignore-removed-keys": Mutation(
        "Rows are appended although their keys were deleted later.",
        "pytest tests/engines/test_inserts.py::test_inserts_of_removed_keys_are_merged",
        without_operand("Batch.may_be_inserts", "self.remembers(KEY_ENTRY)"),
    ),
    "inserts-ignore-truncates": Mutation(
        "Rows are appended although the table was truncated later.",
        "pytest tests/engines/test_inserts.py::test_inserts_that_may_be_stale_are_merged",
        without_operand("Batch.may_be_inserts", "self.remembered_table_events.start != State()"),
    ),
    "placeholders-are-stored": Mutation(
        "The placeholder of a value that no event sent is stored in the table.",
        "conformance T2-no-value-anywhere --split none --deletes soft",
        without_operand("_changes.value", '~F.array_contains("missing", name)'),
    ),
    "records-read-again-are-appended-again": Mutation(
        "Records that a restored bronze reads again are appended a second time.",
        "pytest tests/engines/test_append.py::test_records_reread_by_a_restored_bronze_are_appended_once",
        without_operand("may_repeat", "batch.progress.reread_to"),
    ),
    "rejected-events-stay-rejected": Mutation(
        "A replayed event that was rejected stays rejected, although it now meets the expectations.",
        "pytest tests/engines/test_quarantine.py::test_selected_records_are_replayed_and_others_stay",
        replaced(
            "Batch.history",
            "self._rejected_before(are_back=False)",
            by='self.remembered.where(F.col("kind") == REJECTED_ENTRY)',
        ),
    ),
    "replayed-markers-pair-with-the-last": Mutation(
        "A replayed snapshot marker is paired with the marker that was read last, not with its own.",
        "conformance late-end-after-the-next-beginning --split each --deletes soft",
        replaced(
            "Batch.find_table_events",
            "counts.late_markers or self.table.partitions > 1",
            by="counts.late_markers > counts.markers",
        ),
    ),
    "replayed-truncates-count": Mutation(
        "A replayed truncate deletes the rows that came after it.",
        "conformance truncate-sent-again --split each --deletes soft",
        replaced(
            "TableEvents.events",
            "Event(truncate.kafka_position, TRUNCATE, truncate.order)",
            by="Event(truncate.kafka_position, TRUNCATE)",
        ),
    ),
    "restored-bronze-takes-silver-back": Mutation(
        "Silver does not merge a restored bronze table before it has caught up.",
        "pytest tests/engines/test_restored_tables.py::test_silver_stops_until_restored_bronze_has_caught_up",
        replaced(
            "_SilverWork.process_next",
            "reached is None and progress is not None and not self.layer.accept_loss",
            by="False",
        ),
    ),
    "rows-with-new-keys-inherit-nothing": Mutation(
        "Values that a key change did not send are only searched under the new key.",
        "conformance T4-key-change --split each --deletes hard",
        replaced("FoldResult._lifetimes", "not self.schemas.large", by="self.schemas.large"),
    ),
    "side-table-after-silver": Mutation(
        "Silver commits before the side table, with the pin of the batch before.",
        "conformance O8-replay-behind-a-delete --split each --deletes hard",
        (
            *replaced("_write", "side = self.batch.remember(side_entries, number)", by="side = self.batch.pin"),
            *replaced(
                "_write",
                'failpoints.reach("silver.after_merge", batch=number)',
                by="self.batch.remember(side_entries, number)",
            ),
        ),
    ),
    "silver-forgets-where-a-snapshot-read": Mutation(
        "Silver does not read at which position a snapshot read a row.",
        "conformance blocking-snapshot-contains-a-key-change-of-a-row-never-seen --split each --deletes soft",
        replaced("_stored_columns", '~is_change(F.col("__op"), F.col("__snapshot"))', by="F.lit(False)"),
    ),
    "snapshot-rows-are-ordered-by-time": Mutation(
        "Snapshot rows are ordered by their time, which is the connector's clock.",
        "conformance O2-change-behind-incremental-row --split each --deletes soft",
        replaced(
            "_event_columns",
            'is_change(F.col("op"), F.col("snapshot")) & F.lit(not is_in_log_order)',
            by='F.col("op").isin("c", "u", "d", "r") | F.col("snapshot").isNotNull()',
        ),
    ),
    "the-log-does-not-order-events": Mutation(
        "With `merge.order: log`, the source's time still decides.",
        "pytest tests/engines/test_reported_cases.py -k oracle-flattened-clock-back-at-dst-end-1",
        without_operand("_event_columns", "F.lit(not is_in_log_order)"),
    ),
    "unstarted-snapshots-remove-rows": Mutation(
        "The end of a snapshot whose start is unknown removes rows.",
        "pytest tests/unit/test_table_events.py",
        replaced(
            "_snapshots",
            "unpaired += 1",
            by="unpaired += ended.append(SnapshotEnd(mark.kafka_position, mark.kafka_position)) or 1",
        ),
    ),
    "values-go-to-columns-of-another-type": Mutation(
        "A value goes to the first column of its mapping, also if its type differs.",
        "pytest tests/engines/test_evolution.py::test_all_changes_together_stop_if_frozen_and_else_apply",
        replaced("Layout.column_for", "_can_store(self.columns[name], spark_type)", by="True"),
    ),
    "waiting-rows-are-not-updated": Mutation(
        "A row that waits for a key change's values does not get them when they arrive.",
        "conformance T4-insert-before-delete --split each --deletes soft",
        replaced("_with_stored", "_may_end_waits(batch)", by="batch.counts.key_changes > batch.counts.total"),
    ),
}
