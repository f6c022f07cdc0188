"""Where a job runs: the machine, this machine, and what a probe learned of it."""
