"""The recorder: a short series of changes, made in a database once for each converter, frame and shape."""
