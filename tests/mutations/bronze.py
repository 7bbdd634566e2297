"""Broken rules of bronze: landing, decoding and schema registries."""

from collections.abc import Mapping

from support.edits import replaced, without_operand

from .mutation import Mutation

BRONZE: Mapping[str, Mutation] = {
    "a-recreated-topic-continues-the-old-one": Mutation(
        "A re-created topic stays in the first generation.",
        "pytest tests/engines/test_bronze.py::test_recreated_topic_stops_and_accept_loss_continues",
        replaced("_Batch.generation", "list(self.before.offsets).index(self.topic.log.id)", by="0"),
    ),
    "a-registry-can-forge-formats": Mutation(
        "A registry's text in the lake's own form counts as a schema of another format.",
        "pytest tests/engines/test_hostile_schemas.py::test_hostile_schema_is_refused_with_a_reason",
        replaced("avro_schema", "_OTHER_FORMAT", by='"-"'),
    ),
    "ambiguous-references-are-accepted": Mutation(
        "A record that fits several schemas is not quarantined.",
        "pytest tests/engines/test_references.py::test_id_with_two_fitting_meanings_is_quarantined",
        replaced("_ambiguity", "is_unknown", by="F.lit(False)"),
    ),
    "batches-are-limited-by-rows-only": Mutation(
        "A batch is limited by its rows only.",
        "pytest tests/engines/test_limits.py::test_batches_hold_at_most_max_batch_bytes",
        replaced("_scan_batch", "summary.memory_bytes > topic.max_bytes", by="False"),
    ),
    "column-names-are-not-checked": Mutation(
        "Bronze accepts records with columns that silver cannot have.",
        "pytest tests/engines/test_column_names.py::test_unusable_column_names_quarantine_their_records",
        replaced("_refusal", "column_mapping.check(columns, settings.formats)", by="None"),
    ),
    "events-of-a-transaction-are-replays": Mutation(
        "An equal position is a replay, even if all changes of a transaction share it.",
        "conformance mariadb-transaction --split each --deletes soft",
        replaced("_group", "_position(*components, F.lit(SHARED))", by="_position(*components)"),
    ),
    "every-tombstone-deletes": Mutation(
        "A tombstone right after its delete counts as a separate delete.",
        "conformance O8-replay-behind-a-delete --split none --deletes soft",
        replaced("log_order", 'F.when(is_paired, last["offset"])', by='F.when(F.lit(False), last["offset"])'),
    ),
    "file-headers-count-in-kafka": Mutation(
        "The header for schemas of files also counts in records from Kafka.",
        "pytest tests/engines/test_references.py::test_schema_names_in_headers_open_no_other_file",
        replaced("_read_and_scan", "bool(topic.run.config.files.root)", by="True"),
    ),
    "headers-do-not-count-as-bytes": Mutation(
        "Headers do not count in a batch's bytes.",
        "pytest tests/engines/test_limits.py::test_headers_count_in_batches_and_large_ones_are_not_kept",
        replaced("ScanSummary.memory_bytes", "self.bytes + self.header_bytes", by="self.bytes"),
    ),
    "ids-per-batch-have-no-limit": Mutation(
        "All references of a batch are looked up.",
        "pytest tests/engines/test_limits.py::test_ids_and_layouts_beyond_the_limits_are_quarantined",
        replaced("resolve_schemas", "_limited(records, sent, files, side)", by="sent"),
    ),
    "log-time-before-the-batch-is-ignored": Mutation(
        "Kafka's timestamps in earlier batches do not count in their running maximum.",
        "conformance O12-kafka-time-steps-back --split each --deletes soft",
        replaced("_own_log_ts", 'seed["log_ts"]', by='F.lit(None).cast("bigint")'),
    ),
    "log-time-may-go-back": Mutation(
        "Log order uses Kafka's timestamp instead of its running maximum.",
        "conformance O12-kafka-time-steps-back --split none --deletes soft",
        replaced("log_order", 'log_ts.alias("log_ts")', by='F.unix_millis("timestamp").alias("log_ts")'),
    ),
    "numbers-have-no-length-limit": Mutation(
        "A row with a number of any length is accepted, although writing it may take minutes.",
        "pytest tests/engines/test_types.py::test_number_with_too_many_digits_quarantines_its_record",
        replaced("_other_problems", 'F.when(is_row, value["misfit"])', by='F.when(F.lit(False), value["misfit"])'),
    ),
    "one-json-record-changes-the-key": Mutation(
        "One JSON record changes its table's primary key.",
        "pytest tests/engines/test_json_keys.py::test_other_json_key_is_quarantined_until_many_have_it",
        replaced("resolve_schemas", "takes_any_key", by="True"),
    ),
    "only-a-first-tombstone-pairs": Mutation(
        "Tombstones pair with their delete only in a batch that begins with a tombstone.",
        "conformance O8-replay-behind-a-delete --split none --deletes soft",
        replaced("_bronze_rows", "bool(summary.tombstones)", by="bool(summary.first_is_tombstone)"),
    ),
    "oversized-bytes-are-stored": Mutation(
        "The bytes of records larger than max_record_bytes are stored.",
        "pytest tests/engines/test_limits.py::test_large_record_is_quarantined_without_its_bytes",
        replaced("_frame_columns", "F.when(size <= max_bytes, F.col(part))", by="F.col(part)"),
    ),
    "records-are-ok-without-a-check": Mutation(
        "A large batch is written without a record's error, because all records are expected to be ok.",
        "pytest tests/engines/test_arrow_stage.py::test_bronze_decodes_once_if_all_records_are_ok",
        replaced(
            "_bronze_rows", 'F.when(status == "ok", status).otherwise(F.raise_error(F.lit(_NOT_OK)))', by="status"
        ),
    ),
    "registry-lookups-have-no-time-limit": Mutation(
        "A registry lookup has no time limit.",
        "pytest tests/unit/test_registry_access.py::test_slow_drip_response_is_an_infrastructure_error",
        replaced("RetryPolicy.call", "future.result(self._seconds)", by="future.result()"),
    ),
    "replaced-records-are-not-noticed": Mutation(
        "A different record at the last offset counts as the one that bronze read.",
        "pytest tests/engines/test_bronze.py::test_refilled_log_stops_then_lands_its_new_records",
        replaced("_changed_spans", "record != last[p]", by="False"),
    ),
    "schemas-that-spark-rejects-are-used": Mutation(
        "A schema that Spark's JVM rejects is used in a plan.",
        "pytest tests/engines/test_hostile_schemas.py::test_records_adjacent_to_hostile_schemas_land",
        replaced("_refusal", "spark_refusal(schema, spark) if spark else None", by="None"),
    ),
    "sequence-by-is-ignored": Mutation(
        "`sequence_by` does not decide which event is newer.",
        "pytest tests/engines/test_entities.py::test_sequence_by_numbers_and_dates_break_ties_by_log_order",
        replaced("_value_result", 'sequence_by and shape_of(decoded.tree) != "control"', by="False"),
    ),
    "steps-back-of-the-clock-are-plain": Mutation(
        "A record that follows one with a newer timestamp keeps its own timestamp.",
        "pytest tests/columns/test_log_order.py::test_log_ts_never_decreases",
        without_operand("log_order", "log_ts == plain"),
    ),
    "texts-that-are-not-utf8-are-accepted": Mutation(
        "A value with a text that is not UTF-8 is not quarantined.",
        "pytest tests/engines/test_invalid_utf8.py::test_text_that_is_not_utf8_quarantines_its_record",
        replaced("_other_problems", 'value["is_garbled"]', by="F.lit(False)"),
    ),
    "tombstones-are-ok-without-their-delete": Mutation(
        "The tombstones of a large batch do not belong to the delete before them.",
        "pytest tests/engines/test_arrow_stage.py::test_bronze_decodes_once_if_all_records_are_ok",
        without_operand("_Batch.may_be_all_ok", "self.summary.tombstones"),
    ),
    "tombstones-do-not-pair-across-batches": Mutation(
        "A tombstone at the start of a batch is not paired with the delete that ends the batch before.",
        "pytest tests/columns/test_log_order.py::test_tombstone_pairs_with_preceding_delete_across_batches",
        replaced("log_order", 'F.coalesce(last, seed["last"])', by="last"),
    ),
    "trailing-bytes-are-ignored": Mutation(
        "A value with bytes that its schema does not consume is not quarantined.",
        "pytest tests/columns/test_decode.py::test_wrong_schema_that_decodes_is_found_by_trailing_bytes",
        replaced("_other_problems", '~value["is_exact"]', by="F.lit(False)"),
    ),
}
