"""Progress bars for the command line; the library itself only calls back."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class ProgressBars:
    """A callback ``(stage, done, total)`` that shows one bar for each stage on standard error.

    Nothing is shown when standard error is no terminal.
    """

    def __init__(self) -> None:
        self._stage = ""
        self._bar: Any = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        from tqdm import tqdm

        if stage != self._stage:
            self.close()
            self._stage = stage
            self._bar = tqdm(total=total, desc=stage, file=sys.stderr, disable=None, leave=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.close()
        self._stage, self._bar = "", None

    def __enter__(self) -> ProgressBars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
