"""Functions of sparse tensors: every layout, both semantics, inputs and outputs."""
