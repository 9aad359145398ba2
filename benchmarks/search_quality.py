"""How good a search is: best found after 24 measurements in recorded spaces, as a share of the fastest, over 100 seeds.

    python benchmarks/search_quality.py [SPACE.jsonl.gz ...] [-o FILE] [--seeds N] [--strategy NAME ...]

Without files, every space that the package ships. Nothing is measured: the recordings answer. Spaces of predicted times
are refused, because a search guided by a model would be judged by that model. The result names each recording.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import common
import numpy
import scipy
import sklearn

from tilescale.commands.model import evaluation
from tilescale.costmodel.rows import TRAINABLE
from tilescale.errors import TilescaleError
from tilescale.runtime.replay import SHIPPED, SUFFIX, RecordedSpace
from tilescale.tuner.evaluate import MEASUREMENTS, SEEDS, leave_one_out, search_quality
from tilescale.tuner.experience import from_spaces

RESULT = Path(__file__).parent / "results" / "search_quality.json"


def main(arguments: list[str] | None = None) -> int:
    """The script; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spaces", type=Path, nargs="*")
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--measurements", type=int, default=MEASUREMENTS)
    parser.add_argument("--strategy", action="append", default=[], help="another strategy to compare with")
    options = parser.parse_args(arguments)
    try:
        given = {path.name: RecordedSpace.load(path) for path in options.spaces or sorted(SHIPPED.glob(f"*{SUFFIX}"))}
        spaces = {name: space for name, space in given.items() if options.spaces or space.source in TRAINABLE}
        if not spaces:
            print(f"error: no recorded space of measured times in {SHIPPED}; name files", file=sys.stderr)
            return 1
        rows = from_spaces(spaces.values())
        kinds = sorted({row.source for row in rows})
        held = {kind: leave_one_out([row for row in rows if row.source == kind]) for kind in kinds}
        found = search_quality(list(spaces.values()), options.measurements, options.seeds, options.strategy)
    except TilescaleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    result = {**common.header("search_quality"), **evaluation(held, found, options.measurements, options.seeds)}
    result["spaces"] = [
        {"file": name, "source": s.source, "created": s.created, "version": s.version, **dict(s.environment)}
        for name, s in spaces.items()
    ]
    versions = {"numpy": numpy.__version__, "scipy": scipy.__version__, "sklearn": sklearn.__version__}
    result["environment"] |= versions
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    for one in found:
        print(one.label, *(f"{way.way} {way.mean:.3f}" for way in one.ways), sep="; ")
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
