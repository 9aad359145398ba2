from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the files in tests/golden")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> object:
    """golden(name, text): compare `text` with tests/golden/<name>, or rewrite that with --update-golden."""
    folder = Path(__file__).parent / "golden"

    def compare(name: str, text: str) -> None:
        path = folder / name
        if request.config.getoption("--update-golden"):
            path.write_text(text)
        assert path.exists(), f"{path.name} is missing: run pytest --update-golden and look at the change"
        assert text == path.read_text(), f"{name} changed: run pytest --update-golden and look at the change"

    return compare
