"""Compare silver with the source database. Independent of the code that writes silver."""
