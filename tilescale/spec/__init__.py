"""Declarations: tensors, views, topologies, and the operations derived from them."""
