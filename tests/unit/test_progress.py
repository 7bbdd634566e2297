"""Progress in a commit's metadata is read back unchanged; metadata of other programs is ignored."""

import json

import pytest

from cdc_lake.errors import UnsupportedError
from cdc_lake.tables.progress import BronzeProgress, Gap, GoldProgress, Progress, SidePin, SilverProgress

pytestmark = pytest.mark.core

BRONZE = BronzeProgress(
    run_id="r", epoch=2, commit=7, offsets={"topic-id": {0: 5, 11: 6}}, log_ts={0: 1_700_000_000_000}
)
SILVER = SilverProgress(
    run_id="r",
    commit=1,
    sources={"table-id": 7},
    side=SidePin(id="side-id", nonce="side-nonce", version=3, kinds=("key", "image"), swept_ms=1_700_000_000_000),
    variants={"price__int": "price"},
    retired=("note",),
    reread_to={0: 5},
)
GOLD = GoldProgress(run_id="r", commit=3, sources={"table-id": 7}, epochs={"table-id": 1}, model="5f1d")
WITH_GAPS = BronzeProgress(
    run_id="r",
    commit=2,
    gaps=(
        Gap(topic_id="topic-id", partition=0, start=5, end=9),
        Gap(topic_id="gone", partition=1, start=0, end=None),
    ),
)


@pytest.mark.parametrize("progress", [BRONZE, SILVER, GOLD, WITH_GAPS])
def test_progress_round_trips_through_metadata(progress: Progress) -> None:
    assert Progress.from_metadata(progress.to_metadata()) == progress


def test_commits_keep_the_stored_field_names() -> None:
    following = SILVER.next("r", reread_to={1: 7})
    stored = json.loads(following.to_metadata())["cdc_lake"]

    assert (stored["beside"], stored["gone"], stored["again"]) == ({"price__int": "price"}, ["note"], {"1": 7})
    assert not stored.keys() & {"variants", "retired", "reread_to"}
    assert json.loads(BRONZE.next("r", reread_to={1: 7}).to_metadata())["cdc_lake"]["again"] == {"1": 7}


@pytest.mark.parametrize(
    "text",
    [None, "", "null", "hello", "{", "{}", "[]", "7", '"cdc_lake"', '{"other": {"commit": 1}}', '["cdc_lake"]'],
)
def test_foreign_metadata_is_ignored(text: str | None) -> None:
    assert Progress.from_metadata(text) is None


def test_every_progress_has_a_unique_nonce() -> None:
    assert len({SilverProgress(run_id="r", commit=1).nonce for _ in range(10)}) == 10


@pytest.mark.parametrize(
    ("sources", "nonces", "outcome"),
    [
        ({}, {}, False),
        ({"t": 8}, {}, False),
        ({"t": 3}, {}, True),
        ({"t": 7}, {"t": "seven"}, True),
        ({"t": 7}, {"t": "other"}, False),
        ({"t": 6}, {"t": "six"}, True),
        ({"t": 6}, {"t": "other"}, False),
        ({"t": 5}, {"t": "five"}, None),
    ],
)
def test_consumed_commit_is_identified_by_number_and_nonce(
    sources: dict[str, int], nonces: dict[str, str], outcome: bool | None
) -> None:
    newest = BRONZE.model_copy(update={"nonce": "seven", "follows": "six"})

    assert SilverProgress(run_id="r", commit=1, sources=sources, nonces=nonces).is_of("t", newest) is outcome


def test_topic_ids_keep_their_order() -> None:
    progress = BronzeProgress(run_id="r", commit=1, offsets={"z": {0: 1}, "a": {0: 1}, "m": {0: 1}})

    found = Progress.from_metadata(progress.to_metadata())

    assert found is not None
    assert list(found.offsets) == ["z", "a", "m"]


def test_progress_of_another_version_is_refused() -> None:
    newer = BRONZE.to_metadata().replace('"epoch"', '"era"')

    with pytest.raises(UnsupportedError, match="an incompatible version of cdc_lake"):
        Progress.from_metadata(newer)


@pytest.mark.parametrize(
    ("merged", "bronze", "behind"),
    [
        ({"a": {0: 5, 1: 7}}, {"a": {0: 5, 1: 8}}, {}),
        ({"a": {0: 5, 1: 7}}, {"a": {0: 4, 1: 7}}, {0: (4, 5)}),
        ({"a": {0: 5, 1: 7}}, {"a": {0: 5}}, {1: (0, 7)}),
        ({"a": {0: 5}, "b": {0: 2}}, {"a": {0: 5}}, {0: (0, 2)}),  # from before the topic was re-created
        ({"a": {0: 5}}, {"a": {0: 3}, "b": {0: 1}}, {}),  # bronze has a new topic since, with an accepted loss
        ({"a": {0: 5}}, {"b": {0: 1}}, {}),  # a new bronze table of a new topic
        ({}, {"a": {0: 1}}, {}),
    ],
)
def test_silver_is_ahead_of_a_restored_bronze(
    merged: dict[str, dict[int, int]], bronze: dict[str, dict[int, int]], behind: dict[int, tuple[int, int]]
) -> None:
    silver = SilverProgress(run_id="r", commit=1, offsets=merged)

    assert silver.ahead_of(BronzeProgress(run_id="r", commit=1, offsets=bronze)) == behind
