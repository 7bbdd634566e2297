"""Spark: sessions, versions, jars, Java, and users' SQL."""
