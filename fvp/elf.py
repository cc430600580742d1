"""Sections of an ELF file: just enough to know what an application holds."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from arm_lower.errors import ArmLowerError
from arm_lower.files import read_file

_HEADER = struct.Struct("<16sHHIIIIIHHHHHH")
_SECTION = struct.Struct("<10I")
_SYMBOL = struct.Struct("<IIIBBH")
_ARM = 40
_NOBITS = 8
_ALLOC = 2
_FUNCTION = 2


@dataclass(frozen=True)
class Section:
    """One section.

    Attributes:
        name: ``.text`` or the like.
        address, nbytes: Where it is in memory.
        data: Its bytes, empty if the file has none for it.
        loaded: Whether a loader puts it into memory.
    """

    name: str
    address: int
    nbytes: int
    data: bytes
    loaded: bool


@dataclass(frozen=True)
class Function:
    """A function symbol."""

    name: str
    address: int
    nbytes: int


class Elf:
    """A 32-bit little-endian Arm ELF file.

    Raises:
        ArmLowerError: It is something else, or truncated.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._data = read_file(path)
        try:
            self.sections = self._sections()
        except (struct.error, IndexError, ValueError) as error:
            raise ArmLowerError(f"{self.path.name} is not a whole ELF file: {error}") from error

    def section(self, name: str) -> Section | None:
        return next((s for s in self.sections if s.name == name), None)

    def functions(self) -> list[Function]:
        """Function symbols by address; of several at one address only the first."""
        symbols, names = self.section(".symtab"), self.section(".strtab")
        if symbols is None or names is None:
            return []
        found: dict[int, Function] = {}
        for name, value, size, info, _, _ in _SYMBOL.iter_unpack(symbols.data):
            if info & 15 == _FUNCTION and size:
                found.setdefault(value & ~1, Function(_text(names.data, name), value & ~1, size))
        return sorted(found.values(), key=lambda f: f.address)

    def _sections(self) -> list[Section]:
        head = _HEADER.unpack_from(self._data)
        if head[0][:6] != b"\x7fELF\x01\x01" or head[2] != _ARM:
            raise ValueError("no 32-bit little-endian Arm ELF header")
        offset, count, names_at = head[6], head[12], head[13]
        rows = [_SECTION.unpack_from(self._data, offset + i * _SECTION.size) for i in range(count)]
        names = self._bytes(rows[names_at])
        return [
            Section(_text(names, r[0]), r[3], r[5], b"" if r[1] == _NOBITS else self._bytes(r), bool(r[2] & _ALLOC))
            for r in rows
        ]

    def _bytes(self, row: tuple[int, ...]) -> bytes:
        data = self._data[row[4] : row[4] + row[5]]
        if row[1] not in (0, _NOBITS) and len(data) != row[5]:
            raise ValueError(f"it ends at {len(self._data)}, a section at {row[4] + row[5]}")
        return data


def _text(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode(errors="replace")
