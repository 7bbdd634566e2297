"""The operator's commands, one per module."""
