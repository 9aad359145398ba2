"""`tilescale report`: what the database knows, as one HTML file that works offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilescale.commands.bundle import Db
from tilescale.commands.output import reported, show
from tilescale.commands.places import database, file_for
from tilescale.errors import MissingDependency


def report(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("report.html"),
    db: Db = None,
    op: Annotated[str | None, typer.Option("--op", help="Only this operation.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="Only this GPU model.")] = None,
) -> None:
    """Best, history, predictions, the space and failures.

    One HTML file with everything inside: it opens without a network and can be sent to somebody.
    """
    with reported():
        file_for(output, "--output")
        import perfdb
        from perfdb import asked
        from tilescale.report.data import gather

        try:
            from tilescale.report.page import page
        except ImportError as error:
            raise MissingDependency("a report needs plotly", error.name, "pip install plotly") from error
        with perfdb.open_database(database(db), create=False) as opened:
            asked.require(opened, op=op, gpu=gpu)
            if there := asked.unknown(opened, {"op": op, "gpu": gpu}):
                raise perfdb.RecordError("a report is about what is stored", "; ".join(there), "leave --op or --gpu out")
            text = page(gather(opened, op=op, gpu=gpu))
        output.parent.mkdir(parents=True, exist_ok=True)
        aside = output.with_name(f"{output.name}.part")
        aside.write_text(text, encoding="utf-8")
        aside.replace(output)
        show(f"report: {output} ({output.stat().st_size / 1e6:.1f} MB)")
