"""Tables in Delta Lake and Hudi behind one contract, and the progress that their commits store."""
