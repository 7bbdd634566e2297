"""Benchmarks: cdc_lake and other pipelines on the same topics and cores. See docs/explanation/performance.md."""
