"""Tables in Delta Lake and Hudi behind one contract, and what their commits store of progress."""
