"""The recorder: one small story of changes, told to a database once for each converter, framing and shape."""
