"""The converters to record, and their settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.support.wire import Frame

from .story import Shape


@dataclass(frozen=True)
class Recording:
    """A converter and its settings.

    Args:
        about: the converter, and what is out of the ordinary.
        converter: its class.
        settings: its settings, `{registry}` standing for the registry's address.
        frame: the one that is expected.
        id_kind: what a number in the frame is.
        is_embedded: whether the embedded Connect has it.
        connector: further settings of the connector.
        shapes: those to record.
    """

    name: str
    about: str
    converter: str
    settings: Mapping[str, str] = field(default_factory=dict)
    frame: Frame = "bare"
    id_kind: str = "contentId"
    is_embedded: bool = True
    connector: Mapping[str, str] = field(default_factory=dict)
    shapes: Sequence[Shape] = ("envelope", "flattened")


APICURIO_CONVERTER: Final = "io.apicurio.registry.utils.converter.AvroConverter"
CONFLUENT_CONVERTER: Final = "io.confluent.connect.avro.AvroConverter"
_APICURIO_3: Final = {
    "apicurio.registry.url": "{registry}/apis/registry/v3",
    "apicurio.registry.auto-register": "true",
}
_WHOLE: Final = {"apicurio.registry.dereference-schema": "true"}
_APICURIO_2: Final = {
    "apicurio.registry.url": "{registry}/apis/registry/v2",
    "apicurio.registry.auto-register": "true",
}
_DELETES_AS_TOMBSTONES: Final = {"transforms.unwrap.delete.tombstone.handling.mode": "tombstone"}
JSON_CONVERTER: Final = "org.apache.kafka.connect.json.JsonConverter"

RECORDINGS: Final = (
    Recording(
        "apicurio3-id4",
        "Apicurio's AvroConverter 3.0.9 with dereference-schema=true: whole schemas",
        APICURIO_CONVERTER,
        {**_APICURIO_3, **_WHOLE},
        frame="id4",
    ),
    Recording(
        "apicurio3-headers",
        "Apicurio's AvroConverter 3.0.9 with headers.enabled=true",
        APICURIO_CONVERTER,
        {**_APICURIO_3, **_WHOLE, "apicurio.registry.headers.enabled": "true"},
        frame="apicurio",
    ),
    Recording(
        "apicurio3-id8",
        "Apicurio's AvroConverter 3.0.9 with the Legacy8ByteIdHandler",
        APICURIO_CONVERTER,
        {
            **_APICURIO_3,
            **_WHOLE,
            "apicurio.registry.id-handler": "io.apicurio.registry.serde.Legacy8ByteIdHandler",
        },
        frame="id8",
    ),
    Recording(
        "apicurio2-headers",
        "Apicurio's AvroConverter 2.6.13 as it comes, over version 2 of the registry's API",
        APICURIO_CONVERTER,
        _APICURIO_2,
        frame="apicurio",
        id_kind="globalId",
        is_embedded=False,
    ),
    Recording(
        "apicurio2-id8",
        "Apicurio's AvroConverter 2.6.13 with headers.enabled=false",
        APICURIO_CONVERTER,
        {**_APICURIO_2, "apicurio.registry.headers.enabled": "false"},
        frame="id8",
        id_kind="globalId",
        is_embedded=False,
    ),
    Recording(
        "confluent-id4",
        "Confluent's AvroConverter 7.0.16, over Apicurio's imitation of Confluent's registry",
        CONFLUENT_CONVERTER,
        {"schema.registry.url": "{registry}/apis/ccompat/v7"},
        frame="id4",
        id_kind="id",
        is_embedded=False,
    ),
    Recording(
        "apicurio3-references",
        "Apicurio's AvroConverter 3.0.9 as it comes, and Debezium's own headers. Each nested record is a schema of its "
        "own that others refer to. check-period-ms=0, else it writes the old row for 30 s after a change of the table",
        APICURIO_CONVERTER,
        {**_APICURIO_3, "apicurio.registry.check-period-ms": "0"},
        frame="id4",
        connector={"extended.headers.enabled": "true"},
    ),
    Recording(
        "apicurio3-tombstones",
        "Apicurio's AvroConverter 3.0.9 with dereference-schema=true; deletes become tombstones, which is the "
        "default of the transform since Debezium 3.2",
        APICURIO_CONVERTER,
        {**_APICURIO_3, **_WHOLE},
        frame="id4",
        connector=_DELETES_AS_TOMBSTONES,
        shapes=("flattened",),
    ),
    Recording("json-schemas", "Connect's JsonConverter with schemas", JSON_CONVERTER, {"schemas.enable": "true"}),
    Recording(
        "json-schemas-tombstones",
        "Connect's JsonConverter with schemas; deletes become tombstones",
        JSON_CONVERTER,
        {"schemas.enable": "true"},
        connector=_DELETES_AS_TOMBSTONES,
        shapes=("flattened",),
    ),
    Recording(
        "json-bare-tombstones",
        "Connect's JsonConverter without schemas; deletes become tombstones",
        JSON_CONVERTER,
        {"schemas.enable": "false"},
        connector=_DELETES_AS_TOMBSTONES,
        shapes=("flattened",),
    ),
    Recording("json-bare", "Connect's JsonConverter without schemas", JSON_CONVERTER, {"schemas.enable": "false"}),
)
