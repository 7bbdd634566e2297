"""Runs of the three layers send lineage in which each layer's input is the output of the layer before."""

import itertools
import json
from pathlib import Path

from pyspark.sql import SparkSession
from support.three_layers import Lake

from cdc_lake.config import Config, KafkaConfig, RunConfig, StorageConfig


class LakeWithLineage(Lake):
    """The lake, whose runs write their events to `_events`."""

    @property
    def config(self) -> Config:
        run = RunConfig(openlineage=str(self.root / "_events"))
        return super().config.model_copy(update={"run": run, "kafka": KafkaConfig(bootstrap_servers="broker:9092")})


def test_layers_are_linked_by_their_datasets(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakeWithLineage(spark, tmp_path / "lake", StorageConfig())

    lake.take(1, 2)
    lake.fold()  # nothing is new

    events = [json.loads(line) for line in (lake.root / "_events").read_text(encoding="utf-8").splitlines()]
    ends = [event for event in events if event["eventType"] == "COMPLETE"]
    paths = [f"{lake.root}/{layer}/pagila/public/thing" for layer in ("bronze", "silver")]
    names = [lake.topic.table, *paths, f"{lake.root}/gold/per_half"]
    links = [(event["inputs"][0]["name"], event["outputs"][0]["name"]) for event in ends]
    assert links == [*itertools.pairwise(names)]
    assert [event["eventType"] for event in events] == ["START", "COMPLETE"] * 3
    versions = [event["outputs"][0]["facets"]["version"]["datasetVersion"] for event in ends]
    assert versions == ["0", "0", "0"]
    columns = [field["name"] for field in ends[2]["outputs"][0]["facets"]["schema"]["fields"]]
    assert columns == ["half", "things", "n"]
