"""Refresh gold tables from their SQL models: spark-submit jobs/gold.py --model film_revenue"""

from cdc_lake.cli.app import main

if __name__ == "__main__":
    main("run", "gold")
