"""The runs, one per layer: they wire what reads and writes to the pure rules."""
