"""A command in the driver of a job: `look.py <command> <its flags>`."""

from cdc_lake.cli.app import main

if __name__ == "__main__":
    main()
