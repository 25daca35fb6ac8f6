"""The two output queues of A-SAS: the secondary's, trimmed by Level-0-Acks, and the primary's, trimmed by the broker.

Algorithm 2 of the A-SAS paper, lines 9-11 and 15-16: a secondary keeps what it computed silently until the downstream
is known to have it, and sends the rest when it takes over.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence

from tsunagi.runtime.log import RECOVERED
from tsunagi.runtime.names import NO_NAME, Name
from tsunagi.slot.outputs import Output


def unwritten(outputs: Iterable[Output], tail: Name) -> Iterator[Output]:
    """Yield what is still to be written when `tail` is the last name in `recovered`; other topics have no tail."""
    return (output for output in outputs if output.topic != RECOVERED or output.name > tail)


class SilentQueue:
    """Outputs that were computed but not written."""

    def __init__(self) -> None:
        self._outputs: deque[Output] = deque()
        self._trimmed: Output | None = None  # the last one of `recovered`

    def __len__(self) -> int:
        return len(self._outputs)

    def add(self, outputs: Iterable[Output]) -> None:
        """Keep outputs, in the order of names."""
        self._outputs.extend(outputs)

    def trim(self, offset: int) -> None:
        """Forget the outputs of inputs below `offset`: the downstream has them."""
        while self._outputs and self._outputs[0].name.offset < offset:
            output = self._outputs.popleft()
            if output.topic == RECOVERED:
                self._trimmed = output

    def contradicts(self, name: Name, appended_us: int) -> bool:
        """Return whether an output of `recovered` cannot follow from what was processed here.

        Args:
            name: of an output of a record that was processed.
            appended_us: when that record was appended, as the output says.
        """
        made = [output for output in self._outputs if output.topic == RECOVERED]
        made[:0] = () if self._trimmed is None else (self._trimmed,)
        if not made or name < made[0].name:
            return False
        return not any(output.name == name and output.appended_us == appended_us for output in made)

    def take(self, tail: Name) -> list[Output]:
        """Return, and forget, all that is still to be written when `tail` is the last name in `recovered`.

        Records of other topics have no common tail; they are written again, and readers drop them by name.
        """
        outputs = self.behind(tail)
        self._outputs.clear()
        return outputs

    def behind(self, tail: Name) -> list[Output]:
        """Return the same, and keep everything."""
        return list(unwritten(self._outputs, tail))

    def clear(self) -> None:
        """Forget everything."""
        self._outputs.clear()
        self._trimmed = None


class PendingQueue:
    """Outputs that were handed to the producer and are not acknowledged by the broker yet.

    A replica has one over all its terms: what it sent before its fall is still on its way when it is primary again, and
    must not be acknowledged before it has arrived.
    """

    def __init__(self) -> None:
        self._names: deque[tuple[Name, str]] = deque()
        self._delivered: Counter[tuple[Name, str]] = Counter()  # counted: one name may be on its way twice
        self.last = NO_NAME  # the last name of `recovered` that is acknowledged without a gap
        self.end = 0  # of `recovered`, behind the output that arrived last, as the broker said; 0 = not known
        self._placed = NO_NAME  # that output
        self.lost: tuple[int, Name] | None = None  # `recovered` has lost its end: (before this place, this output)

    def __len__(self) -> int:
        return len(self._names)

    def sent(self, outputs: Iterable[Output]) -> None:
        """Take note of outputs handed over, in the order of names."""
        self._names.extend((output.name, output.topic) for output in outputs)

    def delivered(self, name: Name, topic: str) -> None:
        """Take note of an acknowledgement, in whatever order the topics give them."""
        names, waiting = self._names, self._delivered
        if waiting or not names or names[0] != (name, topic):
            waiting[name, topic] += 1
            while names and names[0] in waiting:
                entry = names.popleft()
                waiting[entry] -= 1
                if not waiting[entry]:
                    del waiting[entry]
                self._note(*entry)
        else:  # the next one, as a rule
            names.popleft()
            self._note(name, topic)

    def delivered_run(self, outputs: Sequence[Output]) -> None:
        """Take note that outputs of one topic are acknowledged that were handed over in a row."""
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

    def place(self, name: Name, place: int) -> bool:
        """Take note of where an output stands in `recovered`; return whether that is behind all that arrived before.

        What one producer sends is appended in its order, so if it is not `recovered` has lost its end meanwhile.
        """
        behind = place >= self.end
        self._placed, self.end = name, place + 1
        return behind

    @property
    def last_end(self) -> int:
        """Where `recovered` ends behind the output named `last`; 0 = not known."""
        return self.end if self._placed == self.last else 0

    def floor(self, position: int) -> int:
        """Return the offset below which every input's outputs are acknowledged, `position` inputs being processed."""
        return self._names[0][0].offset if self._names else position
