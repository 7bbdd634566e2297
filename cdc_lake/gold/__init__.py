"""Gold: refresh the tables of SQL models, and publish them to topics."""
