"""Which layer and PyTorch module a command came from: ``commands.json`` in the record folder beside a ``.pte``.

`arm_lower.compile.Compiled.save` writes it. A file has it for each delegate under the SHA-256 of the delegate's bytes,
so that the record of another compilation says nothing rather than something wrong:

    {"<sha256>": {"layers": [[name, location, npu_cycles], ...], "commands": [[offset, layer], ...]}, ...}

``offset`` counts bytes from the first command, ``layer`` is an index in ``layers``.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from arm_lower.errors import ArmLowerError
from arm_lower.pte.ethosu_blob import unpack
from fvp.ethosu.program import load
from fvp.ethosu.trace import Source

COMMANDS = "commands.json"


def recorded_sources(folder: Path, blob: bytes) -> dict[int, Source] | None:
    """The layer of each operation of a delegate, by its byte offset in the payload.

    Args:
        folder: The record.
        blob: The delegate.

    Returns:
        None if there is no record, or it is of another file.

    Raises:
        ArmLowerError: ``commands.json`` is corrupt.
    """
    path = folder / COMMANDS
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes()).get(hashlib.sha256(blob).hexdigest())
        if found is None:
            return None
        layers = [Source(str(name), str(location), int(cycles)) for name, location, cycles in found["layers"]]
        commands = [(int(offset), layers[index]) for offset, index in found["commands"]]
    except (ValueError, AttributeError, LookupError, TypeError) as error:
        raise ArmLowerError(f"{path} is corrupt: {error!r}", "compile the model again") from error
    start = load(unpack(blob).command_stream).stream.start
    return {start + offset: source for offset, source in commands}
