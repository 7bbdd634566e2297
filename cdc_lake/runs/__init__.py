"""Control of runs: the scheduler, leases, the report, expectations and the catalog."""
