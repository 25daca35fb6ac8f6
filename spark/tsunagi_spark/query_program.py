"""The statements in force in a batch: which queries they make, and where each of them runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tsunagi.query.definitions import Definition, fingerprints, program_of
from tsunagi.query.opk import Opk, opks
from tsunagi.query.placing import reading_streams, split_queries, summed_queries
from tsunagi.query.planning import Program
from tsunagi.query.running import Queries
from tsunagi.query.values import Kind
from tsunagi_spark.layout import Ints, Layout


@dataclass(frozen=True)
class QueryProgram:
    """The statements in force, as the driver has written them down.

    Attributes:
        serial: number of the version, from 1.
        definitions: the statements that are understood.
        kinds: the kinds of the attributes of the sensors table, by the names of these.
        step_us: length of a step, microseconds.
        places: for each group that was known, the query core that runs split queries on it, for good.
        by_opk: whether queries are computed apart by OPKs; a program that an earlier version has written is not.
        by_sums: whether rows are added up before they are sent to queries; the same is true.
    """

    serial: int
    definitions: tuple[Definition, ...]
    kinds: Mapping[str, Kind]
    step_us: int
    places: tuple[int, ...] = ()
    by_opk: bool = True
    by_sums: bool = True

    @cached_property
    def compiled(self) -> Program:
        """The program."""
        return program_of(self.definitions, self.step_us, self.kinds)[0]

    def places_in(self, layout: Layout) -> Ints:
        """Return the query core of each group of a layout, int64[groups]."""
        known = self.places[: len(layout.groups)]
        return np.concatenate((np.array(known, dtype=np.int64), layout.home[len(known) :]))

    @cached_property
    def fills(self) -> dict[str, int]:
        """The published queries that are filled from the log, and the steps from which on they are; each runs alone."""
        published = {plan.name for plan in self.compiled.published}
        begins = {item.name: -(-item.from_us // self.step_us) for item in self.definitions if item.from_us}
        return {name: step for name, step in begins.items() if name in published}

    @cached_property
    def runs(self) -> dict[str, int]:
        """Tells the rows of queries that are filled from those of others of their names: 60 bits, by text and begin."""
        texts = {name: f"{self.digests[name]}/{step}" for name, step in self.fills.items()}
        return {name: int(hashlib.sha256(text.encode()).hexdigest()[:15], 16) for name, text in texts.items()}

    @cached_property
    def split(self) -> frozenset[str]:
        """The published queries that are split over the query cores, by the group of the sensors table."""
        return split_queries(self.compiled) - self.fills.keys()

    @cached_property
    def whole(self) -> frozenset[str]:
        """The published queries that need all rows in one place."""
        return self._together - self.summed

    @cached_property
    def apart(self) -> dict[Opk, frozenset[str]]:
        """The other published queries that are computed apart, by OPK: those of one OPK share a shuffle."""
        found: dict[Opk, frozenset[str]] = {}
        for name, opk in opks(self.compiled).items() if self.by_opk else ():
            if name not in self.split and name not in self.fills:
                found[opk] = found.get(opk, frozenset()) | {name}
        return found

    @cached_property
    def summed(self) -> frozenset[str]:
        """The published queries that need all rows, but whose rows P-SORT cores may add up."""
        return self._together & summed_queries(self.compiled) if self.by_sums else frozenset()

    @cached_property
    def _together(self) -> frozenset[str]:
        """The published queries that one query core runs, since neither groups nor OPKs split them."""
        apart = {name for names in self.apart.values() for name in names}
        return frozenset(plan.name for plan in self.compiled.published) - self.split - self.fills.keys() - apart

    @cached_property
    def adding(self) -> Queries:
        """The queries and views whose rows are added up, as P-SORT cores run them."""
        names = reading_streams(self.compiled, self.summed)
        return Queries(self.compiled, names, summed=names)

    @cached_property
    def opk_names(self) -> dict[str, Opk]:
        """The OPKs by which queries are computed apart, by name."""
        return {opk.name: opk for opk in self.apart}

    @cached_property
    def digests(self) -> dict[str, str]:
        """The digests of queries, by name. A query whose digest has changed begins anew, with no state."""
        return fingerprints(self.compiled)

    def dump(self) -> bytes:
        """Return the program as JSON."""
        rows = [
            [item.name, item.text, item.source, sorted(item.reads), item.line, item.from_us]
            for item in self.definitions
        ]
        kinds = {name: kind.value for name, kind in self.kinds.items()}
        fields: dict[str, Any] = {"version": 1, "serial": self.serial, "definitions": rows, "kinds": kinds}
        fields |= {"step_us": self.step_us, "places": self.places, "by_opk": self.by_opk}
        fields["by_sums"] = self.by_sums
        return json.dumps(fields).encode()

    @staticmethod
    def load(data: bytes) -> QueryProgram:
        """Read a program that `dump` has written."""
        fields = json.loads(data)
        rows = tuple(
            Definition(name, text, source, frozenset(reads), *place)  # an earlier version wrote no `from_us`
            for name, text, source, reads, *place in fields["definitions"]
        )
        kinds = {name: Kind(kind) for name, kind in fields["kinds"].items()}
        places = tuple(fields["places"])
        newer = fields.get("by_opk", False), fields.get("by_sums", False)
        return QueryProgram(fields["serial"], rows, kinds, fields["step_us"], places, *newer)
