"""Several jobs in turn in one driver: `in_turn.py <flags of all> -- <job> <its flags> -- <job> <its flags>`."""

import runpy
import sys

if __name__ == "__main__":
    parts: list[list[str]] = [[]]
    for argument in sys.argv[1:]:
        if argument == "--":
            parts.append([])
        else:
            parts[-1].append(argument)
    of_all, *jobs = parts
    for job, *flags in jobs:
        sys.argv = [job, *of_all, *flags]
        try:
            runpy.run_path(job, run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise
