"""Tests of the checks: each has a right function that passes and a wrong one that fails with the expected finding."""
