"""The engine: v·J·u by derivatives against v·J·u by finite differences, in real coordinates. Imports no framework."""
