"""Kafka topics that tables are sent to."""
