"""Tables in Delta Lake, Hudi and Iceberg behind one contract, and the progress that their commits store."""
