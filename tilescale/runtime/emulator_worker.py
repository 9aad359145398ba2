"""Runs emulator jobs in a process of its own: a pickled list of jobs on stdin, a pickled list of reports on stdout."""

from __future__ import annotations

import pickle
import sys

from tilescale.runtime.emulator_library import run_job


def main() -> None:
    jobs = pickle.loads(sys.stdin.buffer.read())
    sys.stdout.buffer.write(pickle.dumps([run_job(job) for job in jobs]))


if __name__ == "__main__":
    main()
