# %% [markdown]
# # Quarantine and replay
#
# Bronze quarantines a record that it cannot decode. It keeps the record's bytes, the stage at which it failed and the reason, and continues
# with the other records. This notebook starts a broker and a registry of its own to create bad records.

# %%
import io
import json
import tempfile
from pathlib import Path

import fastavro
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from rich.console import Console

import cdc_lake
from cdc_lake.bronze.run import run_bronze
from cdc_lake.cli.quarantine import print_record
from cdc_lake.config import Config, EnvelopeConfig, KafkaConfig, LakeConfig, RegistryConfig
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.operations.quarantine import Selection
from cdc_lake.operations.quarantine_show import show_quarantined
from cdc_lake.operations.replay import replay_quarantined
from cdc_lake.silver.run import run_silver
from cdc_lake.spark.session import build_session

folder = Path(tempfile.mkdtemp(prefix="cdc_lake-quarantine-"))
stack = Stack(folder / "stack")
stack.start(detach=False)
spark = build_session("quarantine")

# %% [markdown]
# A connector sends rows of the table `toy`, flattened by Debezium's unwrap transform. One record is truncated. Another one was sent by a
# script, and its schema has the name of another table.

# %%
TOPIC = "shop.public.toy"
COLUMNS = [
    {"name": "id", "type": "int"},
    {"name": "name", "type": ["null", "string"], "default": None},
    {"name": "__op", "type": ["null", "string"], "default": None},
    {"name": "__source_ts_ms", "type": ["null", "long"], "default": None},
    {"name": "__deleted", "type": ["null", "string"], "default": None},
]
registry = SchemaRegistryClient({"url": f"{stack.endpoints['registry']}/apis/ccompat/v7"})
producer = Producer({"bootstrap.servers": stack.endpoints["kafka"]})


def registered(subject: str, name: str, fields: list) -> tuple[int, dict]:
    schema = {"type": "record", "name": name.rpartition(".")[2], "namespace": name.rpartition(".")[0], "fields": fields}
    return registry.register_schema(subject, Schema(json.dumps(schema), "AVRO")), schema


def framed(registered: tuple[int, dict], row: dict) -> bytes:
    schema_id, schema = registered
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), row)
    return b"\0" + schema_id.to_bytes(4, "big") + body.getvalue()


keys = registered(f"{TOPIC}-key", f"{TOPIC}.Key", COLUMNS[:1])
values = registered(f"{TOPIC}-value", f"{TOPIC}.Value", COLUMNS)
by_hand = registered("somebody-value", "legacy.toys.Value", COLUMNS)


def send(
    number: int, name: str, op: str, ts_ms: int, schema: tuple[int, dict] = values, cut: int | None = None
) -> None:
    row = {"id": number, "name": name, "__op": op, "__source_ts_ms": ts_ms, "__deleted": "false"}
    producer.produce(TOPIC, key=framed(keys, {"id": number}), value=framed(schema, row)[:cut])


send(1, "ball", "c", 1_000)
send(2, "kite", "c", 2_000)
send(1, "red ball", "u", 3_000, cut=-4)
send(2, "green kite", "u", 4_000, schema=by_hand)
producer.flush()

# %% [markdown]
# ## Quarantined records in bronze

# %%
config = Config(
    kafka=KafkaConfig(bootstrap_servers=stack.endpoints["kafka"]),
    registry=RegistryConfig(type="ccompat", url=f"{stack.endpoints['registry']}/apis/ccompat/v7"),
    lake=LakeConfig(root=str(folder / "lake")),
)
(report,) = run_bronze(config, [TOPIC], spark).tables
print(report.status, report.rows)
run_silver(config, [TOPIC], spark)
for record in show_quarantined(config, [TOPIC], spark, limit=2):  # as `cdc-lake quarantine show` does
    print_record(record, Console(force_jupyter=False, highlight=False))

# %% [markdown]
# Silver continues with the other records. The story of a key includes its quarantined records:

# %%
cdc_lake.read(spark, TOPIC, config=config).select("id", "name", "__op").orderBy("id").show()
for event in cdc_lake.story(spark, TOPIC, "1", config=config).events:
    print(event.place, event.op, event.verdict, event.why)

# %% [markdown]
# ## Fix the cause and replay
#
# The script's record is correct after all. `envelope.record_names` allows its schema's name in this topic. A replay then decodes the
# records again that failed for this reason, without the broker. Silver applies a replayed record at its position in the log. The truncated
# record stays quarantined.

# %%
names = config.table(TOPIC).model_copy(update={"envelope": EnvelopeConfig(record_names=("legacy.toys",))})
mended = config.model_copy(update={"tables": {TOPIC: names}})
(report,) = replay_quarantined(mended, [TOPIC], spark, selection=Selection(reasons=["lookup"])).tables
print(report.status, report.rows)
run_silver(mended, [TOPIC], spark)
cdc_lake.read(spark, TOPIC, config=mended).select("id", "name", "__op").orderBy("id").show()

# %%
producer = None
stack.delete()
