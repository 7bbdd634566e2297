"""The suites that need Spark, run with the versions of each profile."""
