"""Settings that hold for every test."""

from __future__ import annotations

from hypothesis import settings

# A loaded machine is slow, not wrong: no deadline per example. What failed is printed so that it can be replayed.
settings.register_profile("gradvet", deadline=None, print_blob=True)
settings.load_profile("gradvet")
