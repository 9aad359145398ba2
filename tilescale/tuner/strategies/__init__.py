"""Search strategies, one a file; see tilescale.tuner.strategy."""
