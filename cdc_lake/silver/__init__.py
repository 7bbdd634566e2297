"""Silver: merge bronze's events into one row per key."""
