"""From bytes to columns: frames, schemas, envelopes, keys and types, as Spark columns. No reads, writes or actions."""
