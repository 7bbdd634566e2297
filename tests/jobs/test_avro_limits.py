"""Avro's limits on executors, each of which has its own JVM."""

from pathlib import Path

import pyspark
from avro_limits_of_executors import MAX_RECORD_BYTES
from submitting import Submit

from cdc_lake.spark.session import avro_limits

JOB = Path(__file__).with_name("avro_limits_of_executors.py")


def test_executors_get_avro_limits_or_are_refused(submit: Submit, tmp_path: Path) -> None:
    home = tmp_path / "spark"  # workers write into it
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    mine = (
        "--conf",
        "spark.executor.extraJavaOptions=-Dmine=1 -XX:+UseSerialGC",
        "--conf",
        "spark.executor.memory=600m",
    )

    ended = submit(
        "-",
        job=JOB,
        before=("--master", "local-cluster[1,1,600]", *mine),
        SPARK_HOME=str(home),
        SPARK_LOCAL_IP="127.0.0.1",
    )

    assert ended.code == 0, ended.said
    limits = avro_limits(MAX_RECORD_BYTES)
    assert ended.report["executor"] == {**{name: str(most) for name, most in limits.items()}, "mine": "1"}
    assert "spark.executor.extraJavaOptions: the application's executors were started" in ended.report["refusal"]
    assert all(f"-D{name}={most}" in ended.report["refusal"] for name, most in limits.items())
