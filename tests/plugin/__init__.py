"""Tests of the pytest plugin, one file per option."""
