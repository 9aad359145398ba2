"""tilescale.spec.catalog: files are read as they are written."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from tilescale.spec import catalog


@pytest.mark.parametrize("name", catalog.names())
def test_a_file_that_is_written_reads_back(name: str, tmp_path: Path) -> None:
    file = catalog.load_named(name)
    node = file.levels[-1]
    assert node.link is not None
    measured = dataclasses.replace(node.link, gbps=391.5, latency_us=0.82)
    changed = dataclasses.replace(file, levels=(*file.levels[:-1], dataclasses.replace(node, link=measured)))
    path = tmp_path / "here.toml"
    path.write_text(catalog.text_of(changed, 'of "here"'))
    assert catalog.load_file(path) == changed
    assert path.read_text().startswith('# of "here"\n')
    assert tomllib.loads(path.read_text())["levels"][-1]["link"]["gbps"] == 391.5
