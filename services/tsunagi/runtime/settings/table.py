"""[source.table] of the configuration: how a file of readings is read, if it does not tell by itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, ValidationError

from tsunagi.runtime.settings.section import ConfigError, Number, Section, Zone


class TableSettings(Section):
    """How a CSV or Parquet file of readings is read. A long one has a row a reading, a wide one a column a sensor."""

    time: str = Field("", description="column of times; empty = found by its name")
    sensor: str = Field("", description="long: column of sensors' names; empty = found by its name")
    value: str = Field("", description="long: column of values; empty = found by its name")
    time_unit: Literal["s", "ms", "us", "ns"] = Field("s", description="unit of times that are numbers")
    time_format: str = Field("", description="form of times that are texts, as in strptime; empty = ISO 8601")
    time_zone: Zone = Field(
        "", description="zone of times that name none, as Europe/Berlin; empty = they must name one"
    )
    separator: Literal["", ",", ";", "\t", "|"] = Field(
        "", description="CSV: what stands between columns; empty = what the header has"
    )
    decimal: Literal["", ".", ","] = Field("", description="CSV: decimal sign; empty = as in the first rows")
    missing: tuple[str | Number, ...] = Field(
        ("NA", "N/A", "null"), description="what says that there is no value, beside an empty cell"
    )

    def changed(self, pairs: Iterable[str]) -> TableSettings:
        """Return these settings with others in their place.

        Args:
            pairs: texts such as ``time_unit=ms`` or ``missing=NA,-999``.

        Raises:
            ConfigError: a text names no setting, or gives it a value that it cannot have.
        """
        tables: dict[str, Any] = self.model_dump()
        for pair in pairs:
            key, sign, text = pair.partition("=")
            if not sign or key not in tables:
                raise ConfigError(f"found {pair!r}, expected KEY=VALUE with one of the keys {', '.join(tables)}")
            tables[key] = tuple(text.split(",")) if key == "missing" else "\t" if text == r"\t" else text
        try:
            return TableSettings.model_validate(tables)
        except ValidationError as error:
            item = error.errors()[0]
            raise ConfigError(f"{item['loc'][0]}: {item['msg']} (found {item['input']!r:.80})") from None
