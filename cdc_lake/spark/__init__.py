"""Spark itself: the session, its versions, its jars and Java, and SQL that users write."""
