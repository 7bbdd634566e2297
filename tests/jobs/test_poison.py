"""Records that are built to crash a reader, with a fixed heap and worker."""

from pathlib import Path

from bronze_of_poison import EACH, GOOD, KINDS
from deltalake import DeltaTable
from submitting import Submit

POISON = Path(__file__).with_name("bronze_of_poison.py")
WORKER_BYTES = 1 << 30


def test_poison_is_quarantined_with_its_reason_and_rest_lands(submit: Submit, lake: Path, tmp_path: Path) -> None:
    limited = tmp_path / "python"
    # Otherwise each of the driver's Arrow threads reserves 64 MiB of address space, which it does not use.
    limited.write_text(f'#!/bin/sh\nulimit -v {WORKER_BYTES >> 10}\nMALLOC_ARENA_MAX=2 exec python "$@"\n')
    limited.chmod(0o755)
    flags = ("--conf", f"spark.pyspark.python={limited}", "--driver-memory", "640m")

    ended = submit("bronze", before=flags, job=POISON, CDC_LAKE__DEFAULTS__READ__MAX_RECORD_BYTES="1000000")

    assert ended.code == 0, ended.said
    table_report, healthy = ended.report["tables"]
    assert healthy["rows"]["ok"] == 1
    bad = EACH * len(KINDS)
    assert len(KINDS) >= 30
    assert table_report["rows"] == {"read": GOOD + bad, "ok": GOOD, "quarantined": bad, "control": 0}
    bronze = DeltaTable(str(lake / "bronze" / "pagila" / "public" / "thing")).to_pyarrow_table().sort_by("offset")
    assert bronze["offset"].to_pylist() == list(range(GOOD + bad))
    reasons = [error["message"] for error in bronze["error"].to_pylist() if error]
    wrong = {
        name: reason
        for (name, (_, words)), reason in zip(list(KINDS.items()) * EACH, reasons, strict=True)
        if words not in reason
    }
    assert wrong == {}
