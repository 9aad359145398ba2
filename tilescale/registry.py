"""Named registries filled by sorted discovery, so that a new op, algorithm or strategy is one new file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from tilescale.errors import TilescaleError, nearest

T = TypeVar("T")
S = TypeVar("S")


def discover(package: str) -> tuple[str, ...]:
    """Import every module of ``package`` in sorted order and return their full names.

    Modules whose name starts with an underscore are helpers and are left to be imported by their users.
    """
    path = importlib.import_module(package).__path__
    names = sorted(found.name for found in pkgutil.iter_modules(path) if not found.name.startswith("_"))
    for name in names:
        importlib.import_module(f"{package}.{name}")
    return tuple(f"{package}.{name}" for name in names)


class Registry(Generic[T]):
    """Items by their ``name`` attribute.

    With ``package``, the first look-up imports every module of that package, whose modules register their items; a
    module that registers itself therefore needs no list to be edited anywhere.
    """

    def __init__(self, name: str, package: str | None = None) -> None:
        self.name = name
        self._package = package
        self._items: dict[str, T] = {}
        self._discovered = package is None

    def register(self, item: S, name: str | None = None) -> S:
        """Add ``item`` under ``name`` or its own ``name``; returns it, so this also decorates classes.

        Raises TilescaleError for an item without a name and for a name that is taken by another item.
        """
        key = name if name is not None else getattr(item, "name", None)
        if not isinstance(key, str) or not key:
            raise TilescaleError(f"an item of registry {self.name!r} has a non-empty name", item, "set .name")
        entry: Any = item
        if self._items.get(key, entry) is not entry:
            raise TilescaleError(f"names in registry {self.name!r} are unique", key, "choose another name")
        self._items[key] = entry
        return item

    def _all(self) -> dict[str, T]:
        if not self._discovered and self._package is not None:
            self._discovered = True  # set first: the modules being imported may look items up themselves
            try:
                discover(self._package)
            except BaseException:
                self._discovered = False
                raise
        return self._items

    def __getitem__(self, name: str) -> T:
        """The item called ``name``; TilescaleError names the known ones."""
        items = self._all()
        if name not in items:
            raise TilescaleError(f"a known {self.name} is named", name, nearest(name, items))
        return items[name]

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._all()))

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[T]:
        items = self._all()
        return iter([items[name] for name in sorted(items)])

    def __len__(self) -> int:
        return len(self._all())
