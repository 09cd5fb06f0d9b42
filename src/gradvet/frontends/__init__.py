"""Frameworks: each folder turns functions of one framework into problems for the core."""
