"""Worker processes that cannot outlive the process that started them, and framed messages to and from them.

Used by codegen (compilers, which crash and hang) and by runtime (ranks, which do too). Imports nothing heavy: a worker
starts in the time of a bare interpreter.
"""
