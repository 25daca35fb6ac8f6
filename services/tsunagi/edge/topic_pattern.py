"""Which MQTT topics an edge reads, and which sensor a topic names: "plant/{edge}/{sensor}", "sensors/+/{sensor}"."""

from __future__ import annotations

from tsunagi.edge.source import SourceError

SENSOR = "{sensor}"
"""This placeholder of a pattern stands for the level of the topic that names the sensor."""
EDGE = "{edge}"
"""This placeholder of a pattern stands for the name of the edge."""
_WHERE = "[source.mqtt] topic"
"""The setting that errors name."""


class TopicLevels:
    """A pattern of topics whose levels may have names of any kind: "plant/{area}/+/{device}/#".

    Args:
        pattern: a level is a text, a name in braces, or + for any one; # at the end stands for any number of levels.
        edge: the name that replaces `{edge}`.
        where: the setting that errors name.

    Raises:
        SourceError: the pattern is malformed.
    """

    def __init__(self, pattern: str, edge: str, where: str) -> None:
        self._levels = pattern.replace(EDGE, edge).split("/")
        self._names: dict[int, str] = {}
        for place, level in enumerate(self._levels):
            if level.startswith("{") and level.endswith("}") and level[1:-1].isidentifier():
                self._names[place] = level[1:-1]
            elif "{" in level or "}" in level or (("+" in level or "#" in level) and len(level) > 1):
                raise SourceError(f"{where}: found the level {level!r}, expected a text, a {{name}}, + or #")
            elif level == "#" and place < len(self._levels) - 1:
                raise SourceError(f"{where}: found {pattern!r}, expected # at its end only")

    def match(self, topic: str) -> dict[str, str] | None:
        """Return the levels of a topic that have names; None = the topic is another one."""
        found = topic.split("/")
        if self._levels[-1] == "#":
            if len(found) < len(self._levels) - 1:
                return None
        elif len(found) != len(self._levels):
            return None
        names = {}
        for place, (level, given) in enumerate(zip(self._levels, found, strict=False)):
            if place in self._names:
                names[self._names[place]] = given
            elif level == "#":
                break
            elif level not in ("+", given):
                return None
        return names


class TopicPattern:
    """A topic pattern that has been checked.

    Args:
        pattern: levels between slashes. `{sensor}` must be a whole level and may stand once; `{edge}` may be part of a
            level; `+` stands for any one level, `#` at the end for any number of levels. Without `{sensor}` the payload
            must name the sensor.
        edge: the name that replaces `{edge}`.

    Attributes:
        subscription: the MQTT filter to subscribe to.

    Raises:
        SourceError: the pattern is malformed.
    """

    def __init__(self, pattern: str, edge: str) -> None:
        levels = pattern.split("/")
        if not pattern or "\0" in pattern:
            raise SourceError(f"{_WHERE}: found {pattern!r}, expected a topic such as 'plant/{EDGE}/{SENSOR}'")
        if EDGE in pattern and any(sign in edge for sign in "/+#"):
            raise SourceError(f"{_WHERE}: the edge's name {edge!r} has a sign that topics use, expected none of / + #")
        if sum(level.count(SENSOR) for level in levels) > 1:
            raise SourceError(f"{_WHERE}: found {pattern!r}, expected {SENSOR} once at most")
        for number, level in enumerate(levels):
            if SENSOR in level and level != SENSOR:
                raise SourceError(f"{_WHERE}: found the level {level!r}, expected {SENSOR} as a whole level")
            rest = level.replace(EDGE, "").replace(SENSOR, "")
            if "{" in rest or "}" in rest:
                raise SourceError(f"{_WHERE}: found the level {level!r}, expected no names but {EDGE} and {SENSOR}")
            if ("+" in level or "#" in level) and len(level) > 1:
                raise SourceError(f"{_WHERE}: found the level {level!r}, expected + and # as whole levels")
            if level == "#" and number < len(levels) - 1:
                raise SourceError(f"{_WHERE}: found {pattern!r}, expected # at its end only")
        self._levels = [level.replace(EDGE, edge) for level in levels]
        self._sensor_at = self._levels.index(SENSOR) if SENSOR in self._levels else None
        self.subscription = "/".join("+" if level == SENSOR else level for level in self._levels)

    def sensor(self, topic: str) -> str | None:
        """Return the sensor that a topic names; None if the pattern has no `{sensor}`, or the topic no such level."""
        if self._sensor_at is None:
            return None
        levels = topic.split("/")
        return levels[self._sensor_at] or None if self._sensor_at < len(levels) else None
