"""Whether the installation is complete, and whether the lake and the catalog can be used. Without Spark."""

import os
import socket
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from cdc_lake.aws import S3_SCHEMES
from cdc_lake.catalogs import open_catalog
from cdc_lake.config import CatalogConfig, LakeConfig
from cdc_lake.errors import InfrastructureError
from cdc_lake.operations.doctor.findings import Finding, fail, ok, skipped, warn
from cdc_lake.spark.conf import spark_home
from cdc_lake.spark.jars import cache_folder, lock_file, read_lock, require
from cdc_lake.spark.java import JAVA_VERSION, find_java, java_version
from cdc_lake.spark.session import hadoop
from cdc_lake.spark.versions import PROFILES, profile_name
from cdc_lake.storage.files import LocalFiles
from cdc_lake.storage.hadoop import HadoopFiles

_S3_PATIENCE = {
    **dict.fromkeys(("attempts.maximum", "retry.limit"), "1"),
    **dict.fromkeys(("connection.establish.timeout", "connection.timeout"), "5000"),
}
"""Hadoop's retries of requests to S3, and timeouts in ms."""


def java() -> Iterator[Finding]:
    found = find_java()
    number = java_version(found)
    if number is None:
        yield fail("java", f"{found} does not run", f"install Java {JAVA_VERSION}, and set JAVA_HOME to it")
    else:
        yield ok("java", f"Java {number}: {found}")


def spark() -> Iterator[Finding]:
    name = profile_name()
    yield ok("spark", f"PySpark {version('pyspark')}, profile {name}")


def jars(lake: LakeConfig) -> Iterator[Finding]:
    if os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR"):
        yield skipped("jars", "a cluster's Spark has its own jars; each run checks their classes when it starts")
        return
    name, cache, cure = profile_name(), cache_folder(), "cdc-lake jars fetch"
    locked = read_lock(lock_file(name))
    if urlsplit(lake.root).scheme in S3_SCHEMES:
        locked, cure = locked + read_lock(lock_file(PROFILES[name].s3a)), f"{cure} --s3a"
    require(locked, cache)
    conf = Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf") / "spark-defaults.conf"
    settings = conf.read_text(encoding="utf-8") if conf.is_file() else ""
    if any(str(jar.path(cache)) not in settings for jar in locked):
        yield fail("jars", f"{conf} does not name them, so Spark does not load them", f"run `{cure}`")
    else:
        yield ok("jars", f"{len(locked)} jars of the profile {name} in {cache}")


def lake_files(root: str) -> LocalFiles | HadoopFiles:
    """The lake's files by the layer that runs use. A store that does not respond is not asked for minutes."""
    if local := LocalFiles.of(root):
        return local
    jvm, conf = hadoop(None)
    for name, value in _S3_PATIENCE.items():
        conf.set(f"fs.s3a.{name}", value)
    return HadoopFiles.of(jvm, conf)


def lake(settings: LakeConfig) -> Iterator[Finding]:
    for warning in settings.warnings:
        yield warn("lake", *warning.split("; ", 1))
    lake_files(settings.root).check_access(settings.root)
    yield ok("lake", f"files in {settings.root} can be written, read and removed")


def catalog(settings: CatalogConfig) -> Iterator[Finding]:
    if settings.type == "none":
        yield skipped("catalog", "the settings have no catalog")
    elif settings.type == "hive":
        yield from _metastore(settings.address, settings.timeout_seconds)
    else:
        open_catalog(settings, lambda: (None, None)).found(settings.gold_database, {"cdc_lake_doctor"})
        yield ok("catalog", "AWS Glue responds")


def _metastore(address: str | None, timeout_seconds: float) -> Iterator[Finding]:
    if address is None:
        yield skipped("catalog", "the cluster's hive-site.xml has the address of the metastore")
        return
    for server in map(urlsplit, address.split(",")):
        try:
            socket.create_connection((server.hostname or "", server.port or 0), timeout_seconds).close()
        except OSError:
            continue
        yield ok("catalog", f"the metastore at {server.netloc} accepts connections")
        return
    cure = "check that it runs and that `catalog.uri` is its address"
    raise InfrastructureError("catalog.uri", f"no metastore accepts connections at {address}", cure)
