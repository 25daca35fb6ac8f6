"""What a sink is: the class that every kind extends, and those of users too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, NamedTuple

from tsunagi.runtime.secret_file import read_secret
from tsunagi.sink.rows import Place, SinkBatch, SinkPosition


class SinkError(ValueError):
    """A sink cannot be used as the settings or the target say. The message names the setting, found and expected."""


class SinkAwayError(OSError):
    """The target does not take rows now. The message has its own words. The same batch is written again later."""


class RefusedError(Exception):
    """The target will never take something in this batch, and may have taken the rest. The message has its words."""


class FencedError(Exception):
    """Another instance has written these partitions since the positions were read, so this write was undone."""


class Refusal(NamedTuple):
    """A row that the target will never take.

    Attributes:
        part, row: its place in the batch: the number of the part, and of the row in that.
        words: what the target said.
    """

    part: int
    row: int
    words: str


class Sink(ABC):
    """Writes rows to a target. The keys of `[sinks.options]` are given to the class as keyword arguments.

    One thread calls `open`, then `write` again and again, then `close`. When `open` or `write` raises an `OSError`, the
    target counts as away: `close` and `open` are called, and then `write` with the same batch, until it succeeds. Any
    other exception but `RefusedError` ends the service.

    The laws (`tsunagi.testing.check_sink`): a row that is written again under the same key changes nothing; what
    `write` has returned from stays; and rows are written in the order of the batch.

    Attributes:
        keeps_positions: whether the target keeps the positions together with the rows (`positions`). Then a row is
            written once, whatever is killed. Otherwise Kafka keeps them, and rows of the last moments before a kill are
            written again.
        most_rows: rows of one write at most, whatever `batch_rows` says. Targets that take rows one by one, perhaps
            slowly, have a low number, so that few of them are written again after a kill.
    """

    keeps_positions: ClassVar[bool] = False
    most_rows: ClassVar[int] = 1_000_000

    def open(self) -> None:  # noqa: B027 - not every target has something to open
        """Connect.

        Raises:
            OSError: the target is away.
            SinkError: the target cannot be used, such as a table with other columns.
        """

    def positions(self, places: Collection[Place]) -> Mapping[Place, SinkPosition]:
        """Return the positions of partitions that the target keeps, as far as it has any.

        Raises:
            OSError: the target is away.
        """
        return {}

    @abstractmethod
    def write(self, batch: SinkBatch) -> Sequence[Refusal] | None:
        """Write all rows of a batch; return the ones that the target will never take, if there are any.

        Raises:
            OSError: the target is away.
            RefusedError: the target does not take this batch because of some rows. Smaller batches of them follow.
            FencedError: the positions that the target keeps are not those before this batch.
        """

    def close(self) -> None:  # noqa: B027 - not every target has something to close
        """Release what `open` has taken, if it has; it may be called more than once."""


def sink_secret(path: str, setting: str) -> str:
    """Return the secret in a file; "" if the settings name none.

    Raises:
        SinkError: the file cannot be read, is not UTF-8, or is empty.
    """
    return read_secret(path, setting, SinkError, "a secret")
