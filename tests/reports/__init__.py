"""Tests of the ways to see a report."""
