# %% [markdown]
# # Time travel
#
# Follow one film from its first event to now. Run `make demo-full` first. The notebook only needs the demo's lake in `.cdc_lake/lake`.

# %%
import json
from datetime import UTC, datetime

import altair as alt
from pyspark.sql import functions as F

import cdc_lake
from cdc_lake.errors import CdcLakeError
from cdc_lake.operations.story import StoryEvent
from cdc_lake.runs.context import lake_of
from cdc_lake.spark.session import build_session

alt.renderers.enable("svg")
FILM = "pagila.public.film"
spark = build_session("time travel")

# %% [markdown]
# ## The story of a row
#
# Find the film with the most events in bronze, which stores every event, and print its story.

# %%
events = cdc_lake.read(spark, FILM, layer="bronze").where("status = 'ok' AND tombstone_of IS NULL")
busiest = events.where("op IN ('c', 'u', 'd', 'r')").groupBy("key").count().orderBy("count", "key", ascending=[0, 1])
key = busiest.first()["key"]
story = cdc_lake.story(spark, FILM, key)
for event in story.events:
    changed = ", ".join(
        f"{name}: {was} → {now}" for name, (was, now) in event.changes.items() if len(f"{was}{now}") < 60
    )
    print(f"{event.place:>8}  {event.op}  {event.verdict:8}  {event.why}  {changed}"[:160])

# %% tags=["picture:story"]


def described(event: StoryEvent) -> str:
    """The values that an event changed, as far as they fit in a line."""
    values = [f"{name}: {was} → {now}" for name, (was, now) in event.changes.items() if was is not None]
    text = ", ".join(values) or ("the whole row" if event.changes else "nothing changed")
    return text if len(text) < 60 else f"{text[:59]}…"


rows = [
    {
        "event": f"{event.op}  {event.place}",
        "time": datetime.fromtimestamp(event.source_ts_ms / 1000, UTC).isoformat(),
        "verdict": event.verdict,
        "changed": described(event),
    }
    for event in story.events
    if event.source_ts_ms
]
chart = alt.Chart(alt.Data(values=rows)).encode(
    y=alt.Y("event:N", sort=None, title=None),
    color=alt.Color("verdict:N", title=None, legend=alt.Legend(orient="bottom")),
)
times = alt.X("time:T", title="source time (UTC)", scale=alt.Scale(padding=12))
points = chart.mark_point(filled=True, size=140).encode(x=times)
texts = chart.mark_text(align="left").encode(x=alt.value(340), text="changed:N")
(points + texts).properties(title=f"The life of {FILM}, key {key}", width=320)

# %% [markdown]
# ## By source time
#
# `SourceTime` gives the table as the source had it at that time, regardless of the batches in which the events arrived.

# %%
moments = sorted({event.source_ts_ms for event in story.events if event.source_ts_ms})
chosen = [moments[round(number * (len(moments) - 1) / 5)] for number in range(6)]
film_id = json.loads(key)["film_id"]
COLUMNS = ["title", "rental_rate", "length", "last_update", "__op", "__deleted"]
for moment in chosen:
    at = datetime.fromtimestamp(moment / 1000, UTC)
    rows = cdc_lake.read(spark, FILM, as_of=cdc_lake.SourceTime(at)).where(f"film_id = {film_id}")
    print(at.isoformat(), [tuple(row) for row in rows.select(*COLUMNS).collect()])

# %% [markdown]
# ## By version and by commit time
#
# A number is a version of the table. A time selects the newest version that was committed by then.

# %%
silver = lake_of(cdc_lake.load_config()).silver(FILM)[0].open(spark)
for version in reversed(silver.history()):
    committed = datetime.fromtimestamp(version.at_ms / 1000, UTC)
    by_number = cdc_lake.read(spark, FILM, as_of=version.version)
    by_time = cdc_lake.read(spark, FILM, as_of=committed)
    assert by_number.count() == by_time.count()
    print(
        version.version, committed.isoformat(), by_number.count(), "rows", version.progress and version.progress.sources
    )

# %% [markdown]
# ## By Kafka's offsets
#
# `Offset` has the next offset of each partition, and gives the table with all records before them.

# %%
everything = cdc_lake.read(spark, FILM, layer="bronze")
ends = {part: end + 1 for part, end in everything.groupBy("partition").agg(F.max("offset")).collect()}
halfway = {partition: end // 2 for partition, end in ends.items()}
for place in (halfway, ends):
    rows = cdc_lake.read(spark, FILM, as_of=cdc_lake.Offset(place))
    print(place, rows.where("NOT __deleted").count(), "films")

# %% [markdown]
# If the lake cannot answer, the error says what it can.

# %%
try:
    cdc_lake.read(spark, FILM, as_of=cdc_lake.SourceTime("2001-01-01T00:00:00Z"))
except CdcLakeError as error:
    print(error.code, error)
