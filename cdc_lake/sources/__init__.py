"""Sources of records: Kafka, or files of a sink connector."""
