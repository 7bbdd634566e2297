"""Where a table's rows go besides the lake: topics."""
