"""What several tests use."""

from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
"""The folder of this clone."""
