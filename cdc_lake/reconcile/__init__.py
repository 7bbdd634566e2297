"""A table of the source beside its table in silver: what is known of both, and where they differ.

Nothing here knows how silver is made.
"""
