"""Bronze, silver and gold in one session, with a fake broker and a fake registry."""

import sys

from bronze_of_fakes import servers
from support.events import TABLE

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import load_config
from cdc_lake.gold.run import run_gold
from cdc_lake.silver.run import run_silver
from cdc_lake.spark.session import build_session
from cdc_lake.spark.versions import running

if __name__ == "__main__":
    spark = build_session("cdc_lake in all layers")
    config, (broker, registry) = load_config(), servers()
    reports = [
        run_bronze(config, [TABLE], spark, source=broker, registry=registry),
        run_silver(config, [TABLE], spark),
        run_gold(config, ["*"], spark),
    ]
    for report in reports:
        print(report.model_dump_json())
    print(running())
    sys.exit(max(report.exit_code for report in reports))
