"""Records that are built to crash a reader, with a fixed heap and worker."""

from pathlib import Path

from bronze_of_poison import EACH, GOOD, KINDS
from deltalake import DeltaTable
from submitting import Submit

POISON = Path(__file__).with_name("bronze_of_poison.py")
PYTHON_BYTES = {"spark.pyspark.python": 1 << 30, "spark.pyspark.driver.python": 2 << 30}
"""Address space of Spark's workers, and of the driver, whose threads each reserve some."""


def test_poison_is_quarantined_with_its_reason_and_rest_lands(submit: Submit, lake: Path, tmp_path: Path) -> None:
    flags = ["--driver-memory", "640m"]
    for setting, most in PYTHON_BYTES.items():
        limited = tmp_path / setting
        limited.write_text(f'#!/bin/sh\nulimit -v {most >> 10}\nexec python "$@"\n')
        limited.chmod(0o755)
        flags += ["--conf", f"{setting}={limited}"]

    ended = submit("bronze", before=flags, job=POISON, CDC_LAKE__DEFAULTS__READ__MAX_RECORD_BYTES="1000000")

    assert ended.code == 0, ended.said
    done, healthy = ended.report["tables"]
    assert healthy["rows"]["ok"] == 1
    bad = EACH * len(KINDS)
    assert len(KINDS) >= 30
    assert done["rows"] == {"read": GOOD + bad, "ok": GOOD, "quarantined": bad, "control": 0}
    bronze = DeltaTable(str(lake / "bronze" / "pagila" / "public" / "thing")).to_pyarrow_table().sort_by("offset")
    assert bronze["offset"].to_pylist() == list(range(GOOD + bad))
    reasons = [error["message"] for error in bronze["error"].to_pylist() if error]
    wrong = {
        name: reason
        for (name, (_, words)), reason in zip(list(KINDS.items()) * EACH, reasons, strict=True)
        if words not in reason
    }
    assert wrong == {}
