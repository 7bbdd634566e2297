# %% [markdown]
# # Gold and its freshness
#
# Read the demo's gold models, and measure how long a change takes from Postgres to each layer. Run `make demo-full` first.

# %%
import json
from pathlib import Path

import altair as alt
import pandas as pd

import cdc_lake
from cdc_lake.spark.session import build_session

alt.renderers.enable("svg")
spark = build_session("gold")

# %% [markdown]
# ## Revenue by category

# %% tags=["picture:revenue"]
revenue = (
    cdc_lake.read(spark, "film_revenue", layer="gold")
    .groupBy("category")
    .agg({"revenue": "sum", "paid_rentals": "sum"})
    .toDF("category", "revenue", "rentals")
    .selectExpr("category", "CAST(revenue AS double) AS revenue", "rentals")
    .toPandas()
)
alt.Chart(revenue, title="Revenue by category (gold.film_revenue)", width=480).mark_bar().encode(
    x=alt.X("revenue:Q", title="dollars"), y=alt.Y("category:N", sort="-x", title=None)
)

# %% [markdown]
# ## Sales in sliding windows
#
# `sales_by_region` has sums of ten-minute windows that start every five minutes. Stores without a region are "Unassigned".

# %% tags=["picture:sales"]
sales = (
    cdc_lake.read(spark, "sales_by_region", layer="gold")
    .selectExpr("region", "date_trunc('MONTH', window_start) AS month", "CAST(amount AS double) / 2 AS amount")
    .groupBy("region", "month")
    .sum("amount")
    .toDF("region", "month", "amount")
    .toPandas()
)
sales = sales[sales["month"] < sales["month"].max()]  # the last month is incomplete
sales["month"] = sales["month"].dt.strftime("%Y-%m")
alt.Chart(sales, title="Sales by region (each sale is in two windows)", width=480, height=240).mark_line(
    point=True
).encode(x=alt.X("month:O", title=None), y=alt.Y("amount:Q", title="dollars"), color=alt.Color("region:N", title=None))

# %% [markdown]
# ## Freshness
#
# Each bronze row has the times when the source committed the change and when Kafka received it. The runs' reports have the times when each
# layer committed. The full demo submits each job only twice, so a change mostly waits for the next run.
# [Keep silver fresh](../docs/how-to/freshness.md) has the times of jobs that run continuously.

# %%
root = cdc_lake.load_config().lake.root
runs = sorted(Path(root, "_runs").glob("*.json"))
ended = {}
for file in runs:
    report = json.loads(file.read_text())
    for table_report in report["tables"]:
        if table_report["status"] == "ok":
            ended.setdefault((report["layer"], table_report["table"]), []).append(pd.Timestamp(report["ended_at"]))

RENTAL = "pagila.public.rental"
arrived = cdc_lake.read(spark, RENTAL, layer="bronze").where("op IN ('c', 'u', 'd') AND status = 'ok'")
stamps = arrived.selectExpr("source_ts_ms", "unix_millis(kafka_timestamp) AS kafka_ms").toPandas()


def waited(layer: str, table: str) -> pd.Series:
    """Seconds from the source's commit to the first end of a run of the layer behind it."""
    ends = pd.Series(sorted(ended[layer, table])).dt.tz_convert("UTC")
    happened = pd.to_datetime(stamps["source_ts_ms"], unit="ms", utc=True)
    place = ends.searchsorted(happened).clip(max=len(ends) - 1)
    return (ends.iloc[place].reset_index(drop=True) - happened).dt.total_seconds()


waits = pd.DataFrame(
    {
        "Kafka": (stamps["kafka_ms"] - stamps["source_ts_ms"]) / 1000,
        "bronze": waited("bronze", RENTAL),
        "silver": waited("silver", RENTAL),
        "gold": waited("gold", "rentals_per_store_day"),
    }
)
waits.quantile([0.5, 0.95]).round(1)

# %% tags=["picture:freshness"]
layers = list(waits)
shown = waits.melt(var_name="layer", value_name="seconds")
title = alt.Title("From the source's commit to each layer (rental)", subtitle="with jobs that are submitted only twice")
alt.Chart(shown.sample(min(len(shown), 4000), random_state=1), title=title, width=480).mark_boxplot(
    extent="min-max", size=16
).encode(x=alt.X("seconds:Q", title="seconds"), y=alt.Y("layer:N", sort=layers, title=None))
