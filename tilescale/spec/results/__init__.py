"""What operations compute: one kind of move a file, found by sorted discovery."""
