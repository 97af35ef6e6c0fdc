"""A function of a library that is slow to import, for where it is seldom called."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Any


class Late:
    """`Late("scipy.special", "erf")` is that function; its module is imported at the first call."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    @cached_property
    def function(self) -> Any:
        """The function itself."""
        return getattr(import_module(self._module), self._name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.function(*arguments, **options)
