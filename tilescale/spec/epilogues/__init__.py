"""One epilogue a file, found by sorted discovery."""
