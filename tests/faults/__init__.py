"""Faults: interruptions, threads, odd inputs and arguments. `table.py` lists them for docs/reliability.md."""
