"""What `cdc-lake doctor` checks, and what a check finds."""

from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import BaseModel

Status = Literal["ok", "skipped", "warn", "fail"]

CHECKS: Mapping[str, str] = {
    "java": "Java 17 is installed and runs, or with Spark 4.1 Java 21.",
    "spark": "The installed PySpark has a profile.",
    "jars": "The profile's jars are complete and undamaged, and Spark's settings name them.",
    "lake": "Files can be written, read and removed in `lake.root`.",
    "kafka": "The brokers respond and accept the login.",
    "topics": "The topics exist, and the login may describe and read them.",
    "registry": "The schema registry responds and accepts the credentials.",
    "schema-ids": "The registry has the schemas of the newest records, and they read the records.",
    "retention": "Kafka still has what bronze has not read, and does not delete it soon.",
    "catalog": "The catalog responds and accepts the credentials.",
    "connect": "Kafka Connect responds.",
    "tasks": "Each connector and its tasks run.",
    "position": "Flattened records have the source position, by which silver recognizes replayed events.",
    "deletes": "Flattened records include deletes.",
    "tombstones": "Flattened deletes are rows. A tombstone has no position and no time.",
    "operations": "The connector sends inserts, updates, deletes and TRUNCATE.",
    "null-defaults": "A null in a column with a default arrives as null.",
    "dereference": "Apicurio's converter notices new columns at once.",
    "record-size": "No transform cuts long values.",
    "errors": "The connector stops at records that it cannot send, instead of skipping them.",
    "names": "`envelope` has the same prefix and placeholder as the connector.",
    "database": "The source database responds.",
    "replica-identity": "Postgres sends the keys of updates and deletes, and unchanged large arrays.",
    "tables": "Debezium can capture each table, and sends the types of all its columns.",
    "partitions": "A partitioned table arrives once: under its own name or under those of its partitions.",
    "publication": "The publication includes every table, and its inserts, updates, deletes and TRUNCATE.",
    "slot": "The replication slot exists, is in use, and keeps what the connector has not read.",
    "clock": "This machine, the database and Kafka have the same time.",
}
"""The checks by name, with the state that is `ok`."""


class Finding(BaseModel):
    """The result of a check.

    Attributes:
        check: a name in `CHECKS`.
        where: the connectors, topics or tables concerned; empty if the check concerns none of them.
        what: what was found. For the source: what is lost.
        cure: the setting, option or command that repairs it; empty if `ok`.
    """

    check: str
    status: Status
    where: tuple[str, ...] = ()
    what: str
    cure: str = ""


class Diagnosis(BaseModel):
    """All findings, in the order of the checks."""

    findings: list[Finding] = []

    @property
    def is_failed(self) -> bool:
        return any(finding.status == "fail" for finding in self.findings)


def ok(check: str, what: str, *where: str) -> Finding:
    return Finding(check=check, status="ok", what=what, where=where)


def skipped(check: str, what: str, cure: str = "", *where: str) -> Finding:
    return Finding(check=check, status="skipped", what=what, cure=cure, where=where)


def warn(check: str, what: str, cure: str, *where: str) -> Finding:
    return Finding(check=check, status="warn", what=what, cure=cure, where=where)


def fail(check: str, what: str, cure: str, *where: str) -> Finding:
    return Finding(check=check, status="fail", what=what, cure=cure, where=where)


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, with equal ones of several tables as one, at the first one's place."""
    places: dict[tuple[str, Status, str, str], Finding] = {}
    for finding in findings:
        identity = (finding.check, finding.status, finding.what, finding.cure)
        known = places.get(identity)
        where = finding.where if known is None else tuple(dict.fromkeys((*known.where, *finding.where)))
        places[identity] = finding.model_copy(update={"where": where})
    return list(places.values())
