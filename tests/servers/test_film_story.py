"""The film example: full change events, then flattened ones in the same topic; two updates in one second."""

from pathlib import Path

import psycopg
import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import load_config
from cdc_lake.demo import sample
from cdc_lake.demo.comparer import compare
from cdc_lake.demo.servers.connectors import postgres_connector_config, put_connector
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.silver.run import run_silver

NAME = "filmstory"
TOPIC = f"{NAME}.public.film"


@pytest.mark.deep
def test_topic_that_switches_from_envelopes_to_flattened_rows(
    spark: SparkSession, stack: Stack, tmp_path: Path
) -> None:
    dsn = sample.create(stack.endpoints["postgres"], NAME)
    content = {"lake": {"root": "lake"}, "stack": {"folder": str(stack.folder)}}
    (tmp_path / "cdc-lake.yml").write_text(yaml.safe_dump(content))
    config = load_config(tmp_path / "cdc-lake.yml")

    def connect(*, envelope: bool) -> None:
        tables = ["public.film"]
        wanted = postgres_connector_config(
            stack.endpoints,
            database=NAME,
            topic_prefix=NAME,
            tables=tables,
            envelope_tables=tables if envelope else (),
        )
        put_connector(stack.endpoints["connect"], NAME, wanted)

    def twice_in_a_second(film: int, first: str, second: str) -> None:
        """Two transactions whose source times have the same second, and usually the same millisecond."""
        with psycopg.connect(dsn, autocommit=True) as source:
            for title in (first, second):
                source.execute("UPDATE film SET title = %s WHERE film_id = %s", [title, film])

    def bring() -> dict[int, str]:
        sample.wait_until_sent(dsn, NAME, 60)
        for report in (run_bronze(config, [TOPIC], spark), run_silver(config, [TOPIC], spark)):
            assert report.exit_code == 0, report.model_dump_json(indent=2)
        path = f"{config.lake.root}/silver/{TOPIC.replace('.', '/')}"
        outcome = compare(dsn, "public", "film", path)
        assert outcome.differences == 0, outcome
        rows = DeltaTable(path).to_pyarrow_table(columns=["film_id", "title", "__deleted"]).to_pylist()
        return {row["film_id"]: row["title"] for row in rows if not row["__deleted"]}

    connect(envelope=True)
    twice_in_a_second(1, "ENVELOPE ONE", "ENVELOPE TWO")
    assert bring()[1] == "ENVELOPE TWO"

    connect(envelope=False)
    twice_in_a_second(1, "FLAT ONE", "FLAT TWO")
    twice_in_a_second(2, "FLAT THREE", "FLAT FOUR")
    with psycopg.connect(dsn, autocommit=True) as source:
        source.execute("DELETE FROM film WHERE film_id = (SELECT max(film_id) FROM film)")
    found = bring()
    assert (found[1], found[2]) == ("FLAT TWO", "FLAT FOUR")
    bronze = DeltaTable(f"{config.lake.root}/bronze/{TOPIC.replace('.', '/')}").to_pyarrow_table(
        columns=["value_schema"]
    )
    assert len({row["value_schema"] for row in bronze.to_pylist() if row["value_schema"]}) == 2  # one of each shape
