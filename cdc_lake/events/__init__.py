"""What arrived: pure rules from bytes to typed change events. No reads, writes, clocks or actions."""
