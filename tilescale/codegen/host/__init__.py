"""Kernel text on a CPU: the host twins of the device primitives, and how they are built."""
