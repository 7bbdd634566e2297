"""Land records of Kafka topics in bronze tables: spark-submit jobs/bronze.py --table pagila.public.film"""

from cdc_lake.cli.app import main

if __name__ == "__main__":
    main("run", "bronze")
