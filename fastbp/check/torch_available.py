"""Whether torch is installed, found out without the second that importing it takes."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec


def torch_version() -> str | None:
    """The version of the installed torch, such as "2.13.0+cpu", or None when there is none.

    The module and its metadata must both be there: what is left of a broken install is not torch.
    """
    if find_spec("torch") is None:
        return None
    try:
        return version("torch")
    except PackageNotFoundError:
        return None
