"""The rules of the fold, in plain Python and Arrow."""
