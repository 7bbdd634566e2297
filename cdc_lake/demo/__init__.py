"""The demo: sample databases, changes to them, and an independent comparer."""
