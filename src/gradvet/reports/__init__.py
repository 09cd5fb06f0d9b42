"""Ways to see a report. They read results and nothing else."""
