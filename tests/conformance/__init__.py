"""The catalogue of behaviours of the drop-in functions, one test for each entry."""
