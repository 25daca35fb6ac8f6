"""The output queues of A-SAS: the secondary's, trimmed by Level-0-Acks, and the primary's, trimmed by the broker.

A Level-0-Ack says that `recovered` has the outputs of all inputs below an offset. A secondary keeps the outputs that it
computed without writing them until a Level-0-Ack covers them. It writes the rest when it takes over (algorithm 2 of the
A-SAS paper, lines 9-11 and 15-16).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence

from tsunagi.runtime.log import RECOVERED
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.slot.outputs import Output


def unwritten(outputs: Iterable[Output], tail: Name) -> Iterator[Output]:
    """Yield the outputs to be written if `tail` is the last name in `recovered`, and all outputs of other topics."""
    return (output for output in outputs if output.topic != RECOVERED or output.name > tail)


class SilentQueue:
    """Outputs that were computed but not written."""

    def __init__(self) -> None:
        self._since: float = 0  # the queue has had every output of the inputs from this offset on
        self._outputs: deque[Output] = deque()
        self._trimmed: Output | None = None  # the last trimmed output of `recovered`

    def __len__(self) -> int:
        return len(self._outputs)

    def add(self, outputs: Iterable[Output]) -> None:
        """Keep outputs, which come in the order of their names."""
        self._outputs.extend(outputs)

    def trim(self, offset: int) -> None:
        """Forget the outputs of inputs below `offset`, since they are in `recovered`."""
        self._since = max(self._since, offset)
        while self._outputs and self._outputs[0].name.offset < offset:
            output = self._outputs.popleft()
            if output.topic == RECOVERED:
                self._trimmed = output

    def contradicts(self, name: Name, appended_us: int) -> bool:
        """Return whether an output in `recovered` cannot follow from the records that were processed here.

        Args:
            name: the output's name. The record that it names was processed here.
            appended_us: when that record was appended, as the output says, microseconds.
        """
        made = [output for output in self._outputs if output.topic == RECOVERED]
        made[:0] = () if self._trimmed is None else (self._trimmed,)
        if name.offset < self._since and (self._trimmed is None or name < self._trimmed.name):
            return False
        return not any(output.name == name and output.appended_us == appended_us for output in made)

    def take(self, tail: Name) -> list[Output]:
        """Return the outputs to be written if `tail` is the last name in `recovered`, and forget all outputs.

        The last names in other topics are not known. Their records are written again, and readers drop them by name.
        """
        outputs = self.behind(tail)
        self.clear(math.inf)
        return outputs

    def behind(self, tail: Name) -> list[Output]:
        """Return the outputs to be written if `tail` is the last name in `recovered`, and keep all outputs."""
        return list(unwritten(self._outputs, tail))

    def clear(self, since: float) -> None:
        """Forget everything. From now on the queue gets the outputs of the inputs from the offset `since` on."""
        self._since = since
        self._outputs.clear()
        self._trimmed = None


class PendingQueue:
    """Outputs that were handed to the producer and that the broker has not acknowledged yet.

    A replica keeps one queue for all its terms as an owner. Outputs of an earlier term may still be on their way in the
    next one, and no Level-0-Ack may cover them before they have arrived.

    Attributes:
        last: the greatest name of `recovered` up to which all outputs have arrived.
        end: the end of `recovered` behind the output that arrived last, as the broker said; 0 = not known.
        lost: (place, output) if `recovered` has lost its end. What was lost stood before this place, and before this
            output in the order of names; None = nothing is lost.
    """

    def __init__(self) -> None:
        self._names: deque[tuple[Name, str]] = deque()
        self._delivered: Counter[tuple[Name, str]] = Counter()  # a name may be on its way twice
        self.last = NO_NAME
        self.end = 0
        self._placed = NO_NAME  # the output that arrived last
        self.lost: tuple[int, Name] | None = None

    def __len__(self) -> int:
        return len(self._names)

    def sent(self, outputs: Iterable[Output]) -> None:
        """Add outputs that were handed to the producer, in the order of their names."""
        self._names.extend((output.name, output.topic) for output in outputs)

    def delivered(self, name: Name, topic: str) -> None:
        """Take in that the broker has an output. Acknowledgements of different topics may come in any order."""
        names, waiting = self._names, self._delivered
        if waiting or not names or names[0] != (name, topic):
            waiting[name, topic] += 1
            while names and names[0] in waiting:
                entry = names.popleft()
                waiting[entry] -= 1
                if not waiting[entry]:
                    del waiting[entry]
                self._note(*entry)
        else:  # usually it is the next one
            names.popleft()
            self._note(name, topic)

    def delivered_run(self, outputs: Sequence[Output]) -> None:
        """Take in that the broker has outputs of one topic that were handed to the producer in a row."""
        names, first, last = self._names, outputs[0], outputs[-1]
        if self._delivered or not names or names[0] != (first.name, first.topic):
            for output in outputs:
                self.delivered(output.name, output.topic)
            return
        for _ in outputs:
            names.popleft()
        self._note(last.name, last.topic)

    def _note(self, name: Name, topic: str) -> None:
        if topic == RECOVERED and name > self.last:
            self.last = name

    def place(self, name: Name, place: int, count: int) -> bool:
        """Take in that an output stands at this offset of `recovered`.

        Args:
            name: the output's name.
            count: how many outputs were sent in a row, of which it is the last. The others stand before it.

        Returns:
            Whether all of them stand behind the outputs that arrived before. A producer's records are appended in the
            order in which they were sent, so False means that `recovered` has lost its end meanwhile.
        """
        behind = place - (count - 1) >= self.end
        self._placed, self.end = name, place + 1
        return behind

    @property
    def last_end(self) -> int:
        """The end of `recovered` right behind the output named `last`; 0 = not known."""
        return self.end if self._placed == self.last else 0

    def floor(self, position: int) -> int:
        """Return the offset below which the outputs of all inputs have arrived, where `position` is the next input."""
        return self._names[0][0].offset if self._names else position
