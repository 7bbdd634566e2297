# %% [markdown]
# # Changes in Delta and in Hudi
#
# Query the changes of one table that silver stores twice, in Delta and in Hudi merge-on-read. Run `make demo-full` first.

# %%
from time import perf_counter

import altair as alt
from pyspark.sql import functions as F

import cdc_lake
from cdc_lake.config import TABLE_TYPES, ReadConfig
from cdc_lake.runs.context import lake_of
from cdc_lake.silver.run import run_silver
from cdc_lake.spark.session import build_session

alt.renderers.enable("svg")
CUSTOMER = "pagila.public.customer"
spark = build_session("changes")

# %% [markdown]
# The setting `storage` of a table can list several formats. Here silver builds the Hudi table from bronze, in addition to the demo's Delta
# table. This needs neither Kafka nor the registry. Small batches give it more than one commit.

# %%
settings = cdc_lake.load_config()
of_customer = settings.table(CUSTOMER).model_copy(
    update={
        "storage": (TABLE_TYPES["delta"], TABLE_TYPES["hudi-mor"]),
        "read": ReadConfig(max_records_per_batch=1000),
    }
)
config = settings.model_copy(update={"tables": {CUSTOMER: of_customer}})
for report in run_silver(config, [CUSTOMER], spark).tables:
    print(report.table, report.status, report.rows)

# %% [markdown]
# ## Changes between two points
#
# `changes` returns at most one change per key, with the change types of Delta's change data feed. Applied to the rows at the first
# point, the changes give the rows at the second.

# %% tags=["picture:changes"]
landed = cdc_lake.read(spark, CUSTOMER, layer="bronze", config=config)
ends = {part: end + 1 for part, end in landed.groupBy("partition").agg(F.max("offset")).collect()}
early = cdc_lake.Offset({partition: end * 3 // 4 for partition, end in ends.items()})
counted = []
for table in (CUSTOMER, f"{CUSTOMER}@hudi_mor"):
    changes = cdc_lake.changes(spark, table, since=early, config=config)
    kinds = {row["_change_type"]: row["count"] for row in changes.groupBy("_change_type").count().collect()}
    print(table, kinds)
    counted += [{"table": table.removeprefix("pagila.public."), "change": kind, "keys": n} for kind, n in kinds.items()]
alt.Chart(alt.Data(values=counted), title="Changes of the last quarter of the log", width=480).mark_bar().encode(
    x=alt.X("keys:Q", title="keys"),
    y=alt.Y("change:N", title=None),
    color=alt.Color("table:N", title=None),
    yOffset="table:N",
)


# %%
def changed(table: str) -> set:
    found = cdc_lake.changes(spark, table, since=early, config=config)
    return {tuple(row) for row in found.select("customer_id", "_change_type", "last_name", "active").collect()}


assert changed(CUSTOMER) == changed(f"{CUSTOMER}@hudi_mor")

# %% [markdown]
# ## Hudi's own queries
#
# The read-optimized view has the rows of the last compaction: it is faster, and lacks what is still in logs. The incremental query
# reads the files that were written after a version.

# %%
hudi = lake_of(config).silver(CUSTOMER)[1].open(spark)
for name, rows in {"snapshot": hudi.read(), "read-optimised": hudi.read_optimized()}.items():
    started = perf_counter()
    print(f"{name:15} {rows.count():5} rows, {perf_counter() - started:.2f} s")
for version in reversed(hudi.history()):
    print(version.version, hudi.read_since(version.version).count(), "rows were written after it")
