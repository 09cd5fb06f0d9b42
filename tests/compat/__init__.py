"""Tests of the drop-in functions beyond the catalogue of behaviours."""
