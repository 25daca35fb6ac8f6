"""What a source of one's own is: a class that an edge imports by `[source] use = "module:Class"`."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from tsunagi.edge.source import SourceError


class SourceMessage(NamedTuple):
    """A message that a `SourceReader` has read.

    Attributes:
        payload: its bytes, in the format that `[source] format` says.
        position: where it stands in the source, if the reader is resumable: greater than that of the message before it.
        topic: what `topic` of `[[source.fields]]` is compared with; "" = it has none.
    """

    payload: bytes
    position: int = 0
    topic: str = ""


class SourceReader(ABC):
    """Reads a source. The keys of `[source.options]` are given to the class as keyword arguments.

    One thread of the edge calls `open`, then `read` again and again, then `close`. If `open` or `read` raises an
    `OSError`, the edge says so, calls `close`, waits a little and begins again with `open`. Any other exception ends
    the edge.

    Attributes:
        resumable: whether `open` can begin at a position. If so, a restarted edge reads again what its open windows
            need, and counts nothing twice. If not, it goes on with what comes next.
    """

    resumable: ClassVar[bool] = False

    def open(self, position: int | None) -> None:  # noqa: B027 - not every source has something to open
        """Connect.

        Args:
            position: the least position that the next message may have; None = begin with what comes from now on. It is
                always None if the reader is not resumable.

        Raises:
            OSError: the source is away.
        """

    @abstractmethod
    def read(self, timeout_s: float) -> Sequence[SourceMessage] | None:
        """Return the next messages in their order, after waiting for one no longer than a time in seconds.

        An empty list means that none waits now; None means that there will never be one again.

        Raises:
            OSError: the source is away.
        """

    def close(self) -> None:  # noqa: B027 - not every source has something to close
        """Release what `open` has taken, if it has; it may be called more than once."""


def make_reader(use: str, options: Mapping[str, object]) -> SourceReader:
    """Make the reader that the settings name.

    Raises:
        SourceError: it cannot be imported or made from its options.
    """
    where = f"[source] use = {use!r}"
    module, _, name = use.partition(":")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SourceError(f"{where}: {error}, expected module:Class") from None
    if not (isinstance(kind, type) and issubclass(kind, SourceReader)):
        raise SourceError(f"{where}: found {kind!r}, expected a class that extends tsunagi.SourceReader")
    try:
        made: SourceReader = kind(**options)
    except (TypeError, ValueError) as error:
        raise SourceError(f"{where}: [source.options]: {error}") from None
    return made


def message_fault(item: object) -> str:
    """Return why a reader must not give an item; "" = it may."""
    if isinstance(item, SourceMessage) and isinstance(item.payload, bytes):
        return ""
    return f"found {repr(item)[:80]}, expected a SourceMessage with bytes"
