"""How long the work takes beside the textbook way: same topics, same cores, same run. docs/performance.md."""
