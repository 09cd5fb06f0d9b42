"""Tests of the torch frontend."""
