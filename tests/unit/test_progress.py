"""Progress travels in a commit's metadata and comes back the same; what others wrote there is not ours."""

import pytest

from cdc_lake.tables.progress import Progress

BRONZE = Progress(
    layer="bronze", run_id="r", epoch=2, commit=7, offsets={"topic-id": {0: 5, 11: 6}}, log_ts={0: 1_700_000_000_000}
)


@pytest.mark.parametrize("progress", [BRONZE, Progress(layer="silver", run_id="r", commit=1, sources={"table-id": 7})])
def test_metadata_comes_back_as_it_went(progress: Progress) -> None:
    assert Progress.from_metadata(progress.to_metadata()) == progress


@pytest.mark.parametrize(
    "text",
    [None, "", "null", "hello", "{", "{}", "[]", "7", '"cdc_lake"', '{"other": {"commit": 1}}', '["cdc_lake"]'],
)
def test_metadata_of_others_is_no_progress(text: str | None) -> None:
    assert Progress.from_metadata(text) is None


def test_every_progress_has_a_nonce_of_its_own() -> None:
    assert len({Progress(layer="silver", run_id="r", commit=1).nonce for _ in range(10)}) == 10
