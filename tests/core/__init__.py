"""Tests of the engine, which knows no framework; the problems that it is given here are torch's."""
