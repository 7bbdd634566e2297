"""What a run leaves behind to be read by people and programs."""
