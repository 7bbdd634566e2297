"""Merge the events of bronze into silver tables: spark-submit jobs/silver.py --table pagila.public.film"""

from cdc_lake.cli.app import main

if __name__ == "__main__":
    main("run", "silver")
