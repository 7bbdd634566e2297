"""What the events mean: pure rules from change events to the state of rows. No reads, writes, clocks or actions."""
