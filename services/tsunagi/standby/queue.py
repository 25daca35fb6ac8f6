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
from tsunagi.slot.plain_outputs import PlainOutputs

REMEMBERED = 1000
"""A silent queue remembers the names of the outputs that it trimmed last, at most so many.

The last record of `recovered` may repeat an earlier output, so the last name alone is not enough to compare with.
"""

_Sent = tuple[Name, str, int]
"""An output on its way: its name, its topic and the generation (number of the slot's log)."""

_SentRun = tuple[PlainOutputs, int]
"""Outputs on their way that are kept as columns, and the generation."""


def unwritten(outputs: Iterable[Output], tail: Name) -> Iterator[Output]:
    """Yield the outputs to be written if `tail` is the last name in `recovered`, and all outputs of other topics."""
    return (output for output in outputs if output.topic != RECOVERED or output.name > tail)


class SilentQueue:
    """Outputs that were computed but not written."""

    def __init__(self) -> None:
        self._since: tuple[float, int] = (0, 0)  # each output from this name on is in the queue, or among the trimmed
        self._outputs: deque[Output] = deque()
        self._trimmed: deque[tuple[Name, int]] = deque(maxlen=REMEMBERED)  # (name, append time of its input)

    def __len__(self) -> int:
        return len(self._outputs)

    def add(self, outputs: Iterable[Output]) -> None:
        """Keep outputs, which come in the order of their names."""
        self._outputs.extend(outputs)

    def trim(self, offset: int) -> None:
        """Forget the outputs of inputs below `offset`, since they are in `recovered`."""
        trimmed = self._trimmed
        while self._outputs and self._outputs[0].name.offset < offset:
            output = self._outputs.popleft()
            if output.topic != RECOVERED:
                continue
            full = len(trimmed) == REMEMBERED
            trimmed.append((output.name, output.appended_us))
            self._since = trimmed[0][0] if full else self._since

    def contradicts(self, name: Name, appended_us: int) -> bool:
        """Return whether an output in `recovered` cannot follow from the records that were processed here.

        Args:
            name: the output's name. The record that it names was processed here.
            appended_us: when that record was appended, as the output says, microseconds.
        """
        if name < self._since:
            return False
        made = ((output.name, output.appended_us) for output in self._outputs if output.topic == RECOVERED)
        return (name, appended_us) not in self._trimmed and (name, appended_us) not in made

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
        self._since = since, 0
        self._outputs.clear()
        self._trimmed.clear()


class PendingQueue:
    """Outputs that were handed to the producer and that the broker has not acknowledged yet.

    A replica keeps one queue for all its terms as an owner. Outputs of an earlier term may still be on their way in the
    next one, and no Level-0-Ack may cover them before they have arrived. Outputs of an earlier *generation* (the number
    of the slot's log) may have the names of others of this one. They count for nothing.

    Attributes:
        last: the greatest name of the generation in `recovered` up to which all outputs have arrived.
        end: the end of `recovered` behind the output that arrived last, as the broker said; 0 = not known.
        lost: (place, output) if `recovered` has lost its end. What was lost stood before this place, and before this
            output in the order of names; None = nothing is lost.
    """

    def __init__(self) -> None:
        self._names: deque[_Sent | _SentRun] = deque()
        self._delivered: Counter[_Sent] = Counter()  # a name may be on its way twice
        self._generation = 0
        self.last = NO_NAME
        self.end = 0
        self._placed = NO_NAME, 0  # the name and the generation of the output that arrived last
        self.lost: tuple[int, Name] | None = None

    def __len__(self) -> int:
        return sum(len(sent[0]) if isinstance(sent[0], PlainOutputs) else 1 for sent in self._names)

    def begin(self, generation: int, tail: Name) -> None:
        """Take in that a term begins in this generation. Its last output in `recovered` is named `tail`."""
        self._generation, self.last = generation, tail

    def sent(self, outputs: Iterable[Output], generation: int) -> None:
        """Add outputs of a generation that were handed to the producer, in the order of their names."""
        if isinstance(outputs, PlainOutputs):
            self._names.append((outputs, generation))
        else:
            self._names.extend((output.name, output.topic, generation) for output in outputs)

    def delivered(self, name: Name, topic: str, generation: int) -> None:
        """Take in that the broker has an output. Acknowledgements of different topics may come in any order."""
        waiting, sent = self._delivered, (name, topic, generation)
        if not waiting and self._next() == sent:  # usually it is the next one
            self._names.popleft()
            self._note(*sent)
            return
        waiting[sent] += 1
        while (entry := self._next()) in waiting and entry is not None:
            self._names.popleft()
            waiting[entry] -= 1
            if not waiting[entry]:
                del waiting[entry]
            self._note(*entry)

    def delivered_run(self, outputs: Sequence[Output], generation: int) -> None:
        """Take in that the broker has outputs of one topic that were handed to the producer in a row."""
        names, waiting = self._names, self._delivered
        if isinstance(outputs, PlainOutputs) and not waiting and names and names[0][0] is outputs:
            names.popleft()
            self._note(outputs.last, RECOVERED, generation)
            return
        first, last = outputs[0], outputs[-1]
        if waiting or self._next() != (first.name, first.topic, generation):
            for output in outputs:
                self.delivered(output.name, output.topic, generation)
            return
        for _ in outputs:
            self._next()
            names.popleft()
        self._note(last.name, last.topic, generation)

    def _next(self) -> _Sent | None:
        """Return the first output on its way, None = there is none. If it is one of a run, the run is taken apart."""
        if not self._names:
            return None
        first = self._names[0]
        if len(first) == 3:
            return first
        run, generation = first
        self._names.popleft()
        self._names.extendleft([(output.name, output.topic, generation) for output in reversed(run)])
        return run.first, RECOVERED, generation

    def _note(self, name: Name, topic: str, generation: int) -> None:
        if topic == RECOVERED and generation == self._generation and name > self.last:
            self.last = name

    def place(self, name: Name, generation: int, place: int, count: int) -> bool:
        """Take in that an output stands at this offset of `recovered`.

        Args:
            name: the output's name.
            generation: the generation with which it was written.
            count: how many records were sent in a row, of which it is in the last. The others stand before it.

        Returns:
            Whether all of them stand behind the outputs that arrived before. A producer's records are appended in the
            order in which they were sent, so False means that `recovered` has lost its end meanwhile.
        """
        behind = place - (count - 1) >= self.end
        self._placed, self.end = (name, generation), place + 1
        return behind

    @property
    def last_end(self) -> int:
        """The end of `recovered` right behind the output named `last`; 0 = not known."""
        return self.end if self._placed == (self.last, self._generation) else 0

    def floor(self, position: int) -> int:
        """Return the offset below which the outputs of all inputs have arrived, where `position` is the next input."""
        firsts = (sent[0].first if isinstance(sent[0], PlainOutputs) else sent[0] for sent in self._names)
        mine = (first.offset for first, sent in zip(firsts, self._names, strict=True) if sent[-1] == self._generation)
        return min(mine, default=position)
