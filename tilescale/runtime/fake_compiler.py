"""The fake runner's compiler, `python -m tilescale.runtime.fake_compiler`: compiles nothing, with given faults."""

from __future__ import annotations

import argparse
import os
import time

from tilescale.processes.worker import ParentLink

MODULE = "tilescale.runtime.fake_compiler"


def main() -> None:
    parser = argparse.ArgumentParser(description="fake compile jobs of a parent process")
    parser.add_argument("--parent", type=int, required=True, help="process id of the parent")
    link = ParentLink(parser.parse_args().parent)
    link.send({"kind": "hello"})
    while (message := link.receive()).kind != "stop":
        kind = message.header["fault"]
        if kind == "compile_hang":
            time.sleep(1e6)
        elif kind == "compile_crash":
            os.abort()
        link.send({"kind": "compiled", "error": "fake: line 1: error" if kind == "compile_error" else ""})


if __name__ == "__main__":
    main()
