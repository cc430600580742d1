"""Tables that are data: YAML files beside the modules that read them."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the fast one where it was built


def load_table(package: str, name: str) -> Any:
    """The content of the file ``name`` in ``package``."""
    return yaml.load((files(package) / name).read_text(encoding="utf-8"), Loader=_LOADER)
