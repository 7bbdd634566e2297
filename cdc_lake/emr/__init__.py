"""Submit jobs to Amazon EMR."""
