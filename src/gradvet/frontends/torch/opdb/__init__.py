"""PyTorch's operator database: which operators it has, their samples, and what PyTorch's own tests say of them."""
