"""gradvet beside torch's slow mode on PyTorch's own operator samples: the same verdict, or a reason in `table.py`."""
