"""Loaded binaries, shared by the operations of a process on one device."""

from __future__ import annotations

from collections.abc import Mapping

from tilescale.codegen.program import Kernel
from tilescale.deploy.driver import Driver
from tilescale.errors import BundleError


class Modules:
    """Kernels by digest, loaded when first asked for. `binaries`: cubins by kernel digest."""

    def __init__(self, driver: Driver, binaries: Mapping[str, bytes]) -> None:
        self._driver, self._binaries = driver, dict(binaries)
        self._loaded: dict[str, tuple[int, int]] = {}
        self._shared: dict[int, int] = {}

    def function(self, kernel: Kernel, shared_bytes: int) -> int:
        """The kernel, allowed to use that much dynamic shared memory. Raises BundleError without its binary."""
        digest = kernel.digest
        if digest not in self._loaded:
            if digest not in self._binaries:
                raise BundleError("every kernel of an operation is in the bundle", digest, "export the bundle again")
            module = self._driver.load_module(self._binaries[digest])
            self._loaded[digest] = (module, self._driver.function(module, kernel.entry))
        function = self._loaded[digest][1]
        if shared_bytes > self._shared.get(function, 0):
            self._driver.set_shared_bytes(function, shared_bytes)
            self._shared[function] = shared_bytes
        return function

    def close(self) -> None:
        """Unload them all; operations that use them are closed before."""
        for module, _ in self._loaded.values():
            self._driver.unload_module(module)
        self._loaded.clear()
        self._shared.clear()
