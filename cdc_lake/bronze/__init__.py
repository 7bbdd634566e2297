"""Bronze: land each record with its bytes, and decide which of them are valid."""
