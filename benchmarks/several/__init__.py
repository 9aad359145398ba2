"""The parts of several_gpus.py."""
