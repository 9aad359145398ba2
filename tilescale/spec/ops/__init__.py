"""One operation a file, named after itself; discovered, so that a new one needs no list to be edited."""
