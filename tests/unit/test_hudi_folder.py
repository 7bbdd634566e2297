"""Which files of a Hudi timeline count as incomplete, and which of them can be removed."""

import io

import pytest
from fastavro import writer

from cdc_lake.tables.hudi_folder import incomplete_files, is_removable

pytestmark = pytest.mark.core


def avro() -> bytes:
    content = io.BytesIO()
    writer(content, {"type": "record", "name": "plan", "fields": [{"name": "text", "type": "string"}]}, [{"text": "x"}])
    return content.getvalue()


PLAN = avro()


@pytest.mark.parametrize(
    "action", ["compaction", "logcompaction", "clean", "rollback", "restore", "clustering", "replacecommit", "indexing"]
)
@pytest.mark.parametrize("content", [b"", PLAN[:20], PLAN[:-20], PLAN[:-1], None])
def test_plan_truncated_anywhere_is_incomplete(action: str, content: bytes | None) -> None:
    name = f"5.{action}.requested"

    assert incomplete_files({name: 9}, lambda _: content) == [name]
    assert incomplete_files({name: 9}, lambda _: PLAN) == []


def test_files_that_are_empty_by_design_are_complete() -> None:
    empty = ["5.commit.requested", "5.inflight", "6.deltacommit.requested", "6.deltacommit.inflight"]
    empty += ["7.compaction.inflight", "8.clean.inflight", "9.rollback.inflight", "5.savepoint.inflight"]

    assert incomplete_files(dict.fromkeys(empty, 0), lambda _: b"") == []


def test_other_files_of_the_folder_are_ignored() -> None:
    others = ["hoodie.properties", ".5.clean.requested.crc", "5.clean.requested.0a1b-2c3d"]

    assert incomplete_files(dict.fromkeys(others, 0), lambda _: b"") == []


@pytest.mark.parametrize(
    ("content", "is_incomplete"), [(b"{}", False), (b'{"a": 1', True), (PLAN, False), (b"other", False)]
)
def test_commits_of_both_formats_are_checked(content: bytes, is_incomplete: bool) -> None:
    assert bool(incomplete_files({"5.commit": len(content)}, lambda _: content)) is is_incomplete


def test_only_newest_commit_per_action_is_read_unless_empty() -> None:
    read: list[str] = []
    sizes = {"1_2.commit": 9, "2_3.deltacommit": 0, "3_4.deltacommit": 9, "4_5.commit": 9, "5_6.clean": 9}

    def content(name: str) -> bytes:
        read.append(name)
        return PLAN if sizes[name] else b""

    assert incomplete_files(sizes, content) == ["2_3.deltacommit"]
    assert sorted(read) == ["2_3.deltacommit", "3_4.deltacommit", "4_5.commit", "5_6.clean"]


def test_completed_restore_is_kept() -> None:
    assert incomplete_files({"5.restore.inflight": 0, "5_6.restore": 0}, lambda _: b"") == []


@pytest.mark.parametrize(
    ("name", "others", "expected"),
    [
        ("5.compaction.requested", ["6_7.deltacommit"], True),
        ("5_6.clean", ["7_8.deltacommit"], True),
        ("5_6.commit", ["5.inflight", "4_5.deltacommit"], True),
        ("5_6.commit", ["5.compaction.inflight"], True),
        ("5.deltacommit", ["5.deltacommit.inflight", "5.deltacommit.requested"], True),
        ("5_6.deltacommit", [], False),
        ("5_6.deltacommit", ["5.deltacommit.inflight", "7_8.commit"], False),
        ("5_6.deltacommit", ["5.deltacommit.inflight", "7_8.clean"], True),
        ("5_6.deltacommit", ["5.deltacommit.inflight", "7.deltacommit.inflight"], True),
    ],
)
def test_removable_timeline_files_are_recognized(name: str, others: list[str], expected: bool) -> None:
    assert is_removable(name, [name, *others]) is expected
