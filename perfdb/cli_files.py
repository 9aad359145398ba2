"""Commands about whole databases and files: check, migrate, merge, import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfdb.cli_output import DbOption, existing, fail, reported, say


def check(
    db: DbOption = None,
    salvage: Annotated[Path | None, typer.Option("--salvage", help="Save what can be read into this new file.")] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Make the summaries anew from the trials.")] = False,
) -> None:
    """Read everything through: pages, indexes, references, summaries. Exit 1 if anything is wrong."""
    from perfdb import checking

    if salvage is not None and repair:
        raise typer.BadParameter("--salvage changes nothing and --repair does; give one, salvage first")
    if salvage is not None:
        _salvage(existing(db), salvage)
        return
    with reported():
        if repair:
            checking.repair(existing(db))
        report = checking.check_database(existing(db))
    for line in report.lines:
        typer.echo(line)
    if not report.ok:
        raise typer.Exit(1)


def _salvage(where: str, target: Path) -> None:
    from perfdb.engine import parse_url, sqlite_path
    from perfdb.salvaging import salvage

    with reported():
        path = sqlite_path(parse_url(where))
        if path is None:
            fail("only a file can be salvaged; restore a backup of the server")
        if not path.exists():
            fail(f"the file must exist; got: {path}")
        for saved in salvage(path, target):
            typer.echo(str(saved))
        typer.echo(f"saved into {target}; {path} was not changed")


def migrate(db: DbOption = None) -> None:
    """Bring a database to the schema of this version, after a backup beside it (back a server up yourself)."""
    from perfdb.engine import parse_url
    from perfdb.schema import VERSIONS, prepare

    with reported():
        done = prepare(parse_url(existing(db)), create=False)
    if done.found == VERSIONS[-1]:
        typer.echo(f"schema {done.found}: nothing to do")
    else:
        typer.echo(f"schema {done.found} -> {VERSIONS[-1]}" + (f", backup {done.backup}" if done.backup else ""))


def merge(
    others: Annotated[list[str], typer.Argument(metavar="OTHER...", help="Paths or URLs of databases to take in.")],
    db: DbOption = None,
) -> None:
    """Take in everything of other databases, each thing once. They are not changed."""
    from perfdb.merging import merge as take_in
    from perfdb.session import open_database

    with reported(), open_database(existing(db)) as database:
        for other in others:
            typer.echo(f"{other}: {take_in(database, other)}")


def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recorded spaces, tuning files, outputs.")],
    db: DbOption = None,
    kind: Annotated[
        str | None, typer.Option("--format", help="fused_moe, nccl_tests, recorded_space; looked up.")
    ] = None,
    op: Annotated[str | None, typer.Option("--op", help="The operation, where the file does not say.")] = None,
    facts: Annotated[
        list[str] | None, typer.Option("--set", help="Environment: power_cap_w=700, driver=580.65, ...")
    ] = None,
) -> None:
    """Take in recorded spaces, fused-MoE tuning files of vLLM and SGLang, and the output of nccl-tests."""
    from perfdb.importing import Facts, import_file
    from perfdb.session import open_database

    with reported():
        known = Facts(pairs(facts or []), op)
        with open_database(existing(db)) as database:
            for path in files:
                counts, read = import_file(database, path, facts=known, kind=kind)
                typer.echo(f"{path}: {counts}")
                for note in read.notes:
                    say(f"note: {note}")


def pairs(texts: list[str]) -> dict[str, str]:
    """`name=value` texts as a dictionary. Errors: typer.BadParameter."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name or not value:
            raise typer.BadParameter(f"expected NAME=VALUE; got: {text}")
        if name.strip() in found:
            raise typer.BadParameter(f"{name.strip()} is given twice: {found[name.strip()]} and {value.strip()}")
        found[name.strip()] = value.strip()
    return found
