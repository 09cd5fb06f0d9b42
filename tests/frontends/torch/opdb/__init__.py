"""PyTorch's operator database as gradvet sees it."""
