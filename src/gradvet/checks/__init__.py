"""The checks, each of which answers one question about a function's derivatives."""
