"""Control of runs: the scheduler, leases, the report, users' SQL, and the catalog."""
