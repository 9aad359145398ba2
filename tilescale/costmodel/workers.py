"""Analytic predictions of many schedules, made by processes side by side.

Run as `python -m tilescale.costmodel.workers`, a worker reads a spec and schedules as JSON, and answers with a line for
every prediction. What a worker does not answer is left to the caller.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from tilescale import canon
from tilescale.costmodel.analytic import Prediction, predict
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

LEAST = 128  # fewer are predicted before a process has started
MOST = 16  # processes


def predict_all(spec: Spec, schedules: Sequence[Schedule], progress: Callable[[int], None]) -> dict[str, Prediction]:
    """Predictions by the digest of the schedule; `progress(done)` counts them. Few schedules, or one core: none."""
    workers = min(MOST, os.cpu_count() or 1, len(schedules) // (LEAST // 2))
    if len(schedules) < LEAST or workers < 2:
        return {}
    found: dict[str, Prediction] = {}
    number = count(1)

    def answered(digest: str, prediction: Prediction) -> None:
        found[digest] = prediction
        progress(next(number))

    running: list[subprocess.Popen[str]] = []
    try:
        with ThreadPoolExecutor(workers, thread_name_prefix="tilescale-predict") as pool:
            try:
                for at in range(workers):
                    process = _started()
                    running.append(process)
                    pool.submit(_converse, process, spec, schedules[at::workers], answered)
            except BaseException:
                _end(running)  # the threads end with their processes
                raise
    finally:
        _end(running)
    return found


def _started() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "tilescale.costmodel.workers"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def _converse(process: subprocess.Popen[str], spec: Spec, schedules: Sequence[Schedule],
              answered: Callable[[str, Prediction], None]) -> None:
    if process.stdin is None or process.stdout is None:
        return
    try:
        with process.stdin as to:
            to.write(json.dumps({"spec": canon.encode(spec), "schedules": [s.as_dict() for s in schedules]}) + "\n")
        for schedule, line in zip(schedules, process.stdout, strict=False):
            us, low, high, parts = json.loads(line)
            answered(schedule.digest, Prediction(us, low, high, tuple((str(kind), float(us)) for kind, us in parts)))
    except (OSError, ValueError):
        return  # it ended; what is missing is predicted by the caller


def main() -> None:
    request = json.loads(sys.stdin.readline())
    spec = canon.decode(Spec, request["spec"])
    for values in request["schedules"]:
        found = predict(spec, Schedule.from_dict(values))
        print(json.dumps((found.us, found.low_us, found.high_us, found.parts)), flush=True)


if __name__ == "__main__":
    main()
