"""Compare the work with a textbook pipeline: same topics, cores and run. docs/explanation/performance.md."""
