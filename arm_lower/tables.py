"""Tables that are data: YAML files beside the modules that read them."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

# Every scalar is text: the tables hold nothing else, and looking for numbers takes half of the time.
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def load_table(package: str, name: str) -> Any:
    """The content of the file ``name`` in ``package``: dicts, lists and strings."""
    return yaml.load((files(package) / name).read_text(encoding="utf-8"), Loader=_LOADER)
