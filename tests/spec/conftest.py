"""Property tests of this room: no test asserts a time, and a first import of torch may be slow."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("spec", deadline=None, derandomize=True)
settings.load_profile("spec")
