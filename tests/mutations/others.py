"""Broken rules of gold, tables, leases, settings and commands."""

from collections.abc import Mapping

from support.edits import replaced, without_operand

from .mutation import Mutation

OTHERS: Mapping[str, Mutation] = {
    "a-clock-behind-hides-commits": Mutation(
        "Hudi writes while the clock is behind its newest commit.",
        "pytest tests/engines/test_hudi.py::test_write_delays_for_its_clock_or_exits_10",
        replaced("wait_until_past", "newest_ms < now_ms", by="True"),
    ),
    "a-full-disk-is-an-error-of-spark": Mutation(
        "A full disk is reported as an error of Spark.",
        "pytest tests/engines/test_scheduler.py::test_full_disk_exits_10_and_the_other_tables_continue",
        replaced("translate_error", "error = exhaustion_error(table, error, *disk_paths) or error", by="pass"),
    ),
    "a-lost-lease-is-not-noticed": Mutation(
        "A run commits after another run has taken its lease.",
        "pytest tests/engines/test_lease.py::test_run_that_lost_its_lease_fails_before_commit",
        replaced("Lease.check", "self._is_taken_over()", by="False"),
    ),
    "a-lost-race-is-an-error-of-spark": Mutation(
        "A Hudi write that fails because of another writer is reported as an error of Spark.",
        "pytest tests/engines/test_hudi.py::test_write_that_loses_a_race_exits_40",
        replaced("HudiTable._check_was_alone", "other_instants or _ROLLED_BACK.search(message)", by="False"),
    ),
    "a-standby-reports-each-run": Mutation(
        "A continuous run that fails like the one before writes a report.",
        "pytest tests/engines/test_scheduler.py::test_standby_writes_a_report_only_when_its_state_changes",
        replaced("TableScheduler.end", "failing == before", by="not failing"),
    ),
    "avro-accepts-any-length": Mutation(
        "The lengths that Avro accepts have no limit.",
        "pytest tests/unit/test_session.py",
        replaced("with_avro_limits", '[*kept, *(f"-D{name}={most}" for name, most in limits.items())]', by="kept"),
    ),
    "closed-windows-are-not-refreshed": Mutation(
        "Windows that ended without a changed row are not refreshed.",
        "pytest tests/engines/test_gold_incremental.py::test_emptied_groups_and_closed_windows_are_refreshed",
        replaced("_closed_windows", "is_between", by="F.lit(False)"),
    ),
    "comments-come-from-the-oldest-schema": Mutation(
        "Comments come from the oldest schema of a topic's values.",
        "pytest tests/engines/test_hive_catalog.py::test_check_of_delta_tables_starts_no_session",
        replaced("_RowsInFiles.latest_value_schema", '"descending"', by='"ascending"'),
    ),
    "commits-are-identified-by-number": Mutation(
        "A consumed commit is identified by its number alone.",
        "pytest tests/engines/test_restored_tables.py::test_bronze_restored_from_backup_is_compared_without_loss",
        replaced("DerivedProgress.is_of", "source not in self.nonces", by="source in self.sources"),
    ),
    "commits-of-others-have-bronze-rows": Mutation(
        "The newest files have the rows of cdc_lake's last commit, also after another program has committed.",
        "pytest tests/engines/test_tables.py::test_rows_of_a_commit_before_changes_by_others_are_not",
        without_operand("DeltaLakeTable.added_by", "self._commits.own != version"),
    ),
    "credentials-are-sent-without-tls": Mutation(
        "Credentials are sent to a server without TLS.",
        "pytest tests/unit/test_registry_access.py",
        replaced("check_privacy", 'not is_loopback(urlsplit(url).hostname or "")', by="False"),
    ),
    "denied-access-is-an-error-of-spark": Mutation(
        "Denied access to a store is reported as an error of Spark.",
        "pytest tests/engines/test_scheduler.py::test_refused_store_access_exits_2_and_is_not_retried",
        replaced("_translate_spark_error", "any(sign in message for sign in ACCESS_DENIED)", by="False"),
    ),
    "empty-log-entries-are-commits": Mutation(
        "An empty entry of Delta's log counts as a commit without changes.",
        "pytest tests/engines/test_damaged_files.py::test_damaged_file_is_named_and_the_advised_fix_works",
        replaced("_EMPTY_ENTRY", r'r"(\d{20}\.json);[^\n]* length=0;"', by=r'r"(\d{20}\.json);[^\n]* length=-1;"'),
    ),
    "files-are-skipped-without-statistics": Mutation(
        "Files are skipped by columns of all types, including those without statistics in Delta.",
        "pytest tests/engines/test_key_types.py::test_key_of_type_without_statistics",
        replaced("_WITHOUT_STATISTICS", '("array<", "map<", "struct<", "binary", "boolean")', by="()"),
    ),
    "files-at-the-bound-are-skipped": Mutation(
        "A file is skipped although its statistics end exactly where the counted rows begin.",
        "pytest tests/engines/test_nothing_new.py::test_status_without_spark_equals_status_with_spark",
        replaced("rows_where", "file.most.get(name, value) >= value", by="file.most.get(name, value) > value"),
    ),
    "files-with-other-deleted-rows-are-the-same": Mutation(
        "A data file is the same in two versions of a Delta table even if one of them deletes rows of it by a vector.",
        "pytest tests/engines/test_row_diff.py::test_diff_of_two_versions_lists_before_and_after_images",
        replaced("LogicalFile.of", 'action.get("deletionVector")', by="None"),
    ),
    "groups-that-rows-left-are-not-refreshed": Mutation(
        "If several sources changed, groups that rows left are not refreshed.",
        "pytest tests/engines/test_gold_incremental.py::test_emptied_groups_and_closed_windows_are_refreshed",
        replaced("_changed_images", "((BEFORE, rows_before), (AFTER, rows_now))", by="((AFTER, rows_now),)"),
    ),
    "hudi-row-writer-writes-short-decimals": Mutation(
        "Hudi creates a table with short decimals by its row writer.",
        "pytest tests/engines/test_hudi.py::test_values_of_every_type_round_trip",
        replaced("has_short_decimals", "_LONG_DIGITS", by="0"),
    ),
    "iceberg-commits-on-any-version": Mutation(
        "An Iceberg commit is published although another run committed before it was staged.",
        "pytest tests/engines/test_iceberg.py::test_second_driver_is_locked",
        replaced("IcebergTable._check_follows", "own.progress.nonce != progress.follows", by="False"),
    ),
    "iceberg-publishes-over-other-commits": Mutation(
        "An Iceberg commit is published although another run committed after it was staged.",
        "pytest tests/engines/test_iceberg.py::test_commit_between_staging_and_publishing_is_noticed",
        replaced(
            "IcebergTable._publish",
            'change.fastForwardBranch("main", branch).removeBranch(branch)',
            by="change.removeBranch(branch).setCurrentSnapshot(staged.id)",
        ),
    ),
    "iceberg-rollbacks-are-not-noticed": Mutation(
        "After a rollback in Iceberg, commit numbers are reused.",
        "pytest tests/engines/test_iceberg.py::test_rollback_returns_progress_and_reuses_no_commit_number",
        replaced(
            "IcebergMetadata.progress", "progress.model_copy(update=newest) if restores else progress", by="progress"
        ),
    ),
    "invalid-ids-become-paths": Mutation(
        "A record's schema id may be a path.",
        "pytest tests/unit/test_schema_files.py::test_invalid_id_is_neither_requested_nor_used_as_a_path",
        replaced("SchemaFiles.look_up", "not is_id(kind, schema_id)", by="False"),
    ),
    "leases-are-ignored": Mutation(
        "A run writes a table whose lease another run has.",
        "pytest tests/engines/test_lease.py::test_second_run_is_refused_and_names_lease_owner_and_expiry",
        replaced("Lease._take", "holder and not holder.is_over", by="False"),
    ),
    "links-in-shared-folders-are-followed": Mutation(
        "The embedded Postgres follows another user's link in a shared folder.",
        "pytest tests/unit/test_embedded_postgres.py",
        replaced("_is_own_folder", "path.lstat()", by="path.stat()"),
    ),
    "metadata-services-are-accepted": Mutation(
        "The URL of a registry may be a metadata service in another notation.",
        "pytest tests/unit/test_config.py",
        replaced("_is_of_this_machine_only", "socket.inet_aton(host)", by="host"),
    ),
    "packages-contain-secrets": Mutation(
        "A package contains all files of its folders.",
        "pytest tests/unit/test_packaging.py",
        replaced(
            "copy_sources",
            'any(part.startswith(".") for part in name.parts) or file.suffix not in endings',
            by="False",
        ),
    ),
    "parquet-checksums-are-not-verified": Mutation(
        "Parquet's checksums are not verified.",
        "pytest tests/engines/test_damaged_files.py::test_damaged_file_is_named_and_the_advised_fix_works",
        replaced(
            "build_session",
            "builder.config(key, value)",
            by='builder.config(key, value).config("spark.hadoop.parquet.page.verify-checksum.enabled", "false")',
        ),
    ),
    "pids-of-other-containers-count": Mutation(
        "A process of another container with the same host name counts as this host's.",
        "pytest tests/engines/test_lease.py",
        replaced(
            "Holder.is_over",
            "self.pid_space and (self.host, self.pid_space) == (socket.gethostname(), _pid_space())",
            by="self.host == socket.gethostname()",
        ),
    ),
    "rebuild-by-key-drops-incomplete-rows": Mutation(
        "A rebuild with another key drops rows without a complete event.",
        "pytest tests/engines/test_key_changes.py::test_key_change_error_names_the_command_that_rebuilds",
        replaced("_RebuiltTable.check_complete", "not (number := rows.count())", by="True"),
    ),
    "rebuild-ignores-incomplete-bronze": Mutation(
        "A rebuild continues although bronze has lost the complete events of some rows.",
        "pytest tests/engines/test_rebuild.py::test_rebuild_without_full_history_is_refused_unless_seeded",
        replaced("_check_history", "first == 1", by="True"),
    ),
    "records-control-the-terminal": Mutation(
        "Text from a record is printed without escapes.",
        "pytest tests/unit/test_output.py",
        replaced("printable", r'f"\\u{ord(match[0]):04x}"', by="match[0]"),
    ),
    "removed-columns-are-added-again": Mutation(
        "A column that another program renamed or removed is added again.",
        "pytest tests/engines/test_manual_changes.py::test_column_renamed_by_hand_stops_run_until_renamed_back",
        replaced("DeltaLakeTable.lost_columns", "own is None or own == newest", by="True"),
    ),
    "sql-calls-java": Mutation(
        "SQL of models and settings can call any Java method.",
        "pytest tests/engines/test_user_sql.py",
        replaced("_without_reflection", "_REFLECTION", by="()"),
    ),
    "sql-reads-the-environment": Mutation(
        "Environment variables are substituted in SQL of models.",
        "pytest tests/engines/test_user_sql.py",
        replaced(
            "build_session",
            "builder.config(key, value)",
            by='builder.config(key, value).config("spark.sql.variable.substitute", "true")',
        ),
    ),
    "sql-starts-programs": Mutation(
        "SQL of models can start programs on executors.",
        "pytest tests/engines/test_user_sql.py",
        replaced("_nodes", "(plan.children(), plan.innerChildren())", by="()"),
    ),
    "the-nonce-is-not-read-back": Mutation(
        "A commit that Delta skipped, because another run had made it, counts as the run's own.",
        "pytest tests/engines/test_tables.py::test_second_append_with_the_same_commit_number_is_locked",
        without_operand("read_back", "newest.nonce != progress.nonce"),
    ),
    "unwritten-reports-are-ignored": Mutation(
        "A run whose report cannot be written ends as if it were written.",
        "pytest tests/engines/test_scheduler.py::test_report_on_a_full_disk_is_logged_and_keeps_the_exit_code",
        replaced(
            "write_report",
            "report.unwritten = ReportedError.of(error or InfrastructureError(path, what, cure))",
            by="pass",
        ),
    ),
}
