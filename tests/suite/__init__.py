"""Tests of cases, targets and their execution."""
