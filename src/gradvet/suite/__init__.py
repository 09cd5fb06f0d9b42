"""Many checks in one run: cases and where they come from, executors, and a store for the results."""
