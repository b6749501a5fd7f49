"""Registers `format("tidings")` with Spark, which imports every installed `pyspark_*` module.

The imports are inside the methods, so that a session that does not use tidings does not pay for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return "tidings"

    def schema(self) -> StructType:
        from tidings.spark.format.source import checked_schema

        return checked_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from tidings.spark.format.source import ArchiveBatchReader

        return ArchiveBatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if any(name.lower() == "durable" for name in self.options):
            from tidings.spark.format.durable_stream_reader import DurableStreamReader

            return DurableStreamReader(self.options, schema)
        from tidings.spark.format.stream_reader import ArchiveStreamReader

        return ArchiveStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tidings.spark.format.sink import sink_writer

        return sink_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from tidings.spark.format.sink import sink_stream_writer

        return sink_stream_writer(self.options, schema, overwrite)
