"""The engine: left · J · right obtained in two ways, in real coordinates. Knows no framework."""
