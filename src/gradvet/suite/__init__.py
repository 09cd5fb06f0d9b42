"""Many checks: what is to be checked, found by name, and run one after the other or side by side."""
