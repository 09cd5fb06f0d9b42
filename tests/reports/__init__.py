"""Tests of the renderers of reports."""
