"""Tests of what is made for one framework each."""
