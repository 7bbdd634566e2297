"""Spark: sessions, versions, jars, and Java."""
