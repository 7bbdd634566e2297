"""Run Postgres, Kafka, Apicurio Registry and Kafka Connect with Debezium as child processes, for the demo and tests."""
