"""Control of runs: the scheduler, what a run shares, its report, expectations and catalog listing."""
