"""Compact files and delete expired ones: spark-submit jobs/maintain.py --table pagila.public.film --layer silver"""

from cdc_lake.cli.app import main

if __name__ == "__main__":
    main("run", "maintain")
