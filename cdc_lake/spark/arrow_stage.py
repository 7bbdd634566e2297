"""Run a Python function over the Arrow batches of a DataFrame, without pandas.

If pandas is installed, PySpark imports it for `DataFrame.mapInArrow`, and pyarrow when it first creates an array. That
takes 0.7 CPU seconds in the driver and as many in each worker, and these functions do not use it.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from threading import Lock
from types import ModuleType
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, _parse_datatype_string
from pyspark.sql.udf import PythonEvalType, UserDefinedFunction  # type: ignore[attr-defined]

from cdc_lake.spark import versions
from cdc_lake.spark.session import is_little

Function = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
DRIVER_BYTES = 8 << 20
"""At most so many bytes of records are collected in the driver."""
_OWN_WORKERS = {"CDC_LAKE_WITHOUT_PANDAS": "1"}
"""Spark starts separate workers for functions with another environment, so users' functions keep pandas."""
_lock = Lock()


def map_in_arrow(rows: DataFrame, function: Function, schema: StructType | str) -> DataFrame:
    """As `DataFrame.mapInArrow`.

    Args:
        function: a function of a module, with batches in and out.
    """
    udf = UserDefinedFunction(
        partial(_without_pandas, function), schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    environment = rows.sparkSession.sparkContext.environment
    with _lock:
        environment.update(_OWN_WORKERS)
        try:
            call = udf(*(rows[name] for name in rows.columns))
        finally:
            for name in _OWN_WORKERS:
                del environment[name]
    return DataFrame(versions.map_in_arrow(rows, call), rows.sparkSession)


def map_in_driver(rows: DataFrame, function: Function, schema: StructType) -> DataFrame:
    """As `map_in_arrow`, at once and in the driver, which saves the Python worker; for few rows, in one partition."""
    return _from_arrow(rows.sparkSession, function(rows._collect_as_arrow()), schema)


def from_rows(spark: SparkSession, rows: Iterable[tuple[object, ...]], columns: str) -> DataFrame:
    """As `createDataFrame`, but without a Python worker in each job."""
    schema = cast("StructType", _parse_datatype_string(columns))
    structs = pa.array(list(rows), pa.struct(list(to_arrow_schema(schema))))
    return _from_arrow(spark, [pa.RecordBatch.from_struct_array(structs)], schema)


def _from_arrow(spark: SparkSession, batches: Iterable[pa.RecordBatch], schema: StructType) -> DataFrame:
    jvm: Any = spark._jvm
    serialized = jvm.PythonUtils.toSeq([batch.serialize().to_pybytes() for batch in batches]).iterator()
    return DataFrame(jvm.PythonSQLUtils.toDataFrame(serialized, schema.json(), spark._jsparkSession), spark)


def fit_in_driver(*, rows: int, record_bytes: int) -> bool:
    """Whether the driver can hold this number of rows, whose records have this size in total."""
    return is_little(rows=rows, stored_bytes=0) and record_bytes <= DRIVER_BYTES


def in_driver(rows: DataFrame) -> DataFrame:
    """Compute rows that `fit_in_driver`, and hold them in the driver, so that no later job computes them again.

    The result has one partition, or a write would make a file for each core.
    """
    return map_in_driver(rows, iter, rows.schema).coalesce(1)


def _without_pandas(function: Function, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a worker: the function's results, computed without importing pandas."""
    if _NoPandas not in sys.meta_path:
        sys.meta_path.insert(0, _NoPandas)
    return function(batches)


class _NoPandas:
    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)
