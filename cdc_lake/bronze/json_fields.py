"""The fields of JSON without a schema: which of them a batch reads.

The records of a shape are read with one layout, the union of their fields, because a producer that omits nulls
sends any set of them. Some names need a layout of their own, so that they affect only the records that have them: names
that no table can have, and names that exclude each other, such as `id` and `ID`, two that `schema.rename` maps to one
column, or the positions in the logs of two connectors.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from cdc_lake.bronze.usable_schemas import MAX_LAYOUTS
from cdc_lake.config import TableConfig
from cdc_lake.decode import json as json_format
from cdc_lake.decode.column_mapping import ColumnMapping
from cdc_lake.decode.envelope import row_fields
from cdc_lake.decode.framing import Side
from cdc_lake.decode.records import WriterSchema, schema_text
from cdc_lake.decode.schemas import SchemaError, Tree, fields

MAX_FIELDS = 2000
"""Maximum number of different fields that the JSON values without a schema of a batch may have."""
_LOG = re.compile("__(?:source_)?(lsn|file|commit_lsn|commit_scn|ord)")
"""The fields that show which connector's log a flattened row's position is in; see `decode.positions`."""
_BEYOND = "beyond"
_NAMES = "array<string>"


def fields_by_reference(most: int) -> Column:
    """As an aggregate, the fields of JSON without a schema: array<struct<reference: string, name: string>>, the lowest,
    up to `most`.

    Columns in: `value_names`, `value_reference`.
    """
    sets = F.collect_set(F.when(F.col("value_names").isNotNull(), F.struct("value_reference", "value_names")))

    def pairs(item: Column) -> Column:
        names = F.from_json(item["value_names"], _NAMES)
        return F.transform(names, lambda name: F.struct(item["value_reference"].alias("reference"), name.alias("name")))

    return F.slice(F.sort_array(F.array_distinct(F.flatten(F.transform(sets, pairs)))), 1, most)


def by_reference(pairs: Iterable[Row]) -> dict[str, set[str]]:
    """Names of fields by reference, from rows of both."""
    names = dict[str, set[str]]()
    for row in pairs:
        names.setdefault(row["reference"], set()).add(row["name"])
    return names


@dataclass(frozen=True)
class JsonFields:
    """The fields of a batch, by reference.

    Attributes:
        common: the fields with which all records of a reference are read.
        special: the fields that give the records that have them a reference of their own.
        are_all: false if the batch has more fields than it may have.
    """

    common: Mapping[str, Sequence[str]] = field(default_factory=dict)
    special: Mapping[str, Sequence[str]] = field(default_factory=dict)
    are_all: bool = True

    @classmethod
    def of(
        cls, records: DataFrame, references: Iterable[str], names: Mapping[str, set[str]], settings: TableConfig
    ) -> "JsonFields":
        """Choose the fields: if there are too many, first the declared ones, then the most frequent.

        Args:
            records: the columns of `with_references`.
            references: the references of their values.
            names: their fields, as `fields_by_reference` returns them.
        """
        are_all = sum(map(len, names.values())) <= MAX_FIELDS
        if not are_all:
            names = _most_frequent(records, settings.value.columns)
        common, special = {}, {}
        for reference in references:
            kind, _, shape = reference.partition(":")
            if kind != json_format.PLAIN_REFERENCE or shape.startswith(json_format.DOCUMENT):
                continue
            # Whether a field counts as not sent must not depend on the other records of its batch.
            chosen = names.get(reference, set()).union(settings.envelope.null_means_unchanged)
            special[reference] = _special(shape, chosen, settings)
            common[reference] = sorted(chosen.difference(special[reference]))
        return cls(common, {one: own_fields for one, own_fields in special.items() if own_fields}, are_all)

    @property
    def problems(self) -> Mapping[str, str]:
        """Why records are quarantined, by the reference that `applied` gives them."""
        if self.are_all:
            return {}
        why = (
            f"it has a field beyond the {MAX_FIELDS} fields that JSON without a schema may have in a batch; those in "
            "`value.columns` count first, then the most frequent; `cdc-lake quarantine replay` lands such records"
        )
        return {f"{reference}:{_BEYOND}": why for reference in self.common}

    def read_by(self, schema_id: str) -> tuple[str, list[str]]:
        """The shape that an ID of a plain reference names, and the fields with which its records are read."""
        shape, _, own = schema_id.partition(":")
        common = self.common.get(f"{json_format.PLAIN_REFERENCE}:{shape}", ())
        return shape, sorted({*common, *(json.loads(own) if own else ())})

    def applied(self, records: DataFrame) -> DataFrame:
        """Give records with special fields, or with fields beyond the limit, a reference of their own.

        Columns in: those of `with_references`. Columns out: the same.
        """
        reference, names = F.col("value_reference"), F.from_json("value_names", _NAMES)
        new_reference = reference
        for plain in self.common if not self.are_all else self.special:
            special = _texts(self.special.get(plain, ()))
            own = F.array_intersect(names, special)
            is_beyond = F.lit(False)
            if not self.are_all:
                is_beyond = F.size(F.array_except(names, F.concat(_texts(self.common[plain]), special))) > 0
            suffix = F.when(is_beyond, _BEYOND).when(F.size(own) > 0, F.to_json(F.array_sort(own)))
            new_reference = F.when(reference == plain, F.concat_ws(":", reference, suffix)).otherwise(new_reference)
        return records if new_reference is reference else records.withColumn("value_reference", new_reference)

    def references(self, records: DataFrame, scanned: set[str], side: Side) -> set[str]:
        """The references of a batch's keys or values.

        Args:
            records: the columns of `applied`.
            scanned: the references before.
        """
        if side == "key" or not self.special:
            return scanned
        reference = F.col("value_reference")
        own = records.where(F.substring_index(reference, ":", 2).isin(*self.special) & ~reference.endswith(_BEYOND))
        counted = own.groupBy(reference.alias("reference")).count().orderBy(F.desc("count"), "reference")
        return scanned.union(row["reference"] for row in counted.limit(MAX_LAYOUTS + 1).collect())


def _special(shape: str, names: Collection[str], settings: TableConfig) -> list[str]:
    """The fields of a shape that need a layout of their own."""
    mapping = ColumnMapping(settings.schema_.exclude, settings.schema_.rename)
    stored: dict[str, str | None] = {}
    unusable = set[str]()
    for name in names:
        try:
            (read,), columns = _field(shape, name, settings)
            mapping.check(columns, settings.formats)
        except SchemaError:
            unusable.add(name)
        else:
            stored[name] = mapping.target(name) if columns else read
    spelled = Counter(name.lower() for name in stored)
    targets = Counter(target.lower() for target in stored.values() if target is not None)
    logs = {
        name: log[1]
        for name, read in stored.items()
        if shape == json_format.FLAT and (log := _LOG.fullmatch(str(read)))
    }

    def excludes_another(name: str) -> bool:
        target = stored[name]
        is_of_one_log = name in logs and len(set(logs.values())) > 1
        return is_of_one_log or spelled[name.lower()] > 1 or (target is not None and targets[target.lower()] > 1)

    return sorted(unusable.union(filter(excludes_another, stored)))


def _field(shape: str, name: str, settings: TableConfig) -> tuple[list[str], dict[str, Tree]]:
    """The name with which a field is read, and its column, unless it is a metadata field of a flattened row."""
    columns = settings.value.columns
    declared = {name: columns[name]} if name in columns else {}
    writer = WriterSchema(schema_text("json", shape=json_format.FLAT, names=[name], columns=declared))
    if shape != json_format.FLAT:
        return [name], fields(writer.tree)
    tree = writer.of_table(settings).tree
    return list(fields(tree)), row_fields(tree)


def _most_frequent(records: DataFrame, declared: Iterable[str]) -> dict[str, set[str]]:
    pairs = records.select(
        F.col("value_reference").alias("reference"), F.explode(F.from_json("value_names", _NAMES)).alias("name")
    )
    counted = pairs.groupBy("reference", "name").count()
    order = (F.col("name").isin(*declared).desc(), F.desc("count"), "name")
    return by_reference(counted.orderBy(*order).limit(MAX_FIELDS).collect())


def _texts(texts: Iterable[str]) -> Column:
    """An array of texts. Spark parses one text once; an expression per name would slow down every plan."""
    return F.from_json(F.lit(json.dumps(list(texts))), _NAMES)
