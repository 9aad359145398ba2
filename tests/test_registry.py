"""registry and errors: discovery finds a new file, look-ups name what is known, messages are one line."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilescale.errors import SpecError, TilescaleError, nearest
from tilescale.registry import Registry, discover


@dataclass(frozen=True)
class Item:
    name: str


def test_items_come_back_by_name_and_sorted() -> None:
    registry: Registry[Item] = Registry("thing")
    two, one = registry.register(Item("two")), registry.register(Item("one"))
    assert registry["one"] is one
    assert registry.names() == ("one", "two")
    assert list(registry) == [one, two]
    assert "two" in registry
    assert "three" not in registry
    assert len(registry) == 2
    assert registry["two"] is two


def test_an_unknown_name_lists_the_known_ones() -> None:
    registry: Registry[Item] = Registry("thing")
    registry.register(Item("all_gather"))
    with pytest.raises(TilescaleError, match=r"a known thing is named; got: all_gatter; did you mean 'all_gather'"):
        registry["all_gatter"]


def test_a_name_is_taken_once() -> None:
    registry: Registry[Item] = Registry("thing")
    item = registry.register(Item("one"))
    assert registry.register(item) is item
    with pytest.raises(TilescaleError, match=r"names in registry 'thing' are unique"):
        registry.register(Item("one"))
    with pytest.raises(TilescaleError, match=r"non-empty name"):
        registry.register(Item(""))


def test_register_decorates_a_class() -> None:
    registry: Registry[type] = Registry("strategy")

    @registry.register
    class Random:
        name = "random"

    assert registry["random"] is Random


def test_discovery_imports_in_sorted_order_and_leaves_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "discovered_here"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from tilescale.registry import Registry\nORDER = []\nITEMS = Registry('item', package=__name__)\n"
    )
    body = "from discovered_here import ITEMS, ORDER\nORDER.append(__name__)\nITEMS.register(object, name={!r})\n"
    for name in ("zeta", "alpha", "_helper"):
        (package / f"{name}.py").write_text(body.format(name))
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert discover("discovered_here") == ("discovered_here.alpha", "discovered_here.zeta")
        module = sys.modules["discovered_here"]
        assert module.ORDER == ["discovered_here.alpha", "discovered_here.zeta"]
        assert module.ITEMS.names() == ("alpha", "zeta")
    finally:
        for name in [name for name in sys.modules if name.startswith("discovered_here")]:
            del sys.modules[name]


def test_an_error_is_one_line_of_rule_value_and_remedy() -> None:
    error = SpecError("K is a multiple\n of 8", 20, "pad K to 24")
    assert str(error) == "K is a multiple of 8; got: 20; pad K to 24"
    assert (error.rule, error.actual, error.remedy) == ("K is a multiple\n of 8", 20, "pad K to 24")
    assert str(TilescaleError("only a rule")) == "only a rule"
    assert str(TilescaleError("falsy values are shown", 0)) == "falsy values are shown; got: 0"


def test_nearest_names_a_close_word_and_all_known() -> None:
    assert nearest("FulRow", ["FullRow", "FullCol"]) == "did you mean 'FullRow'? known: FullCol, FullRow"
    assert nearest("xyz", ["FullRow"]) == "known: FullRow"
    assert nearest("xyz", []) == "known: (none)"
