"""Reads worker types and prices from a TOML file, or from a table of the same form in the settings.

[small]
rate = 40.0       # tuples/s
price_h = 0.095
boot_s = 100      # optional, like region, limit, price_gb
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsunagi.scaler.policy import WorkerType

_KEYS = ("rate", "price_h", "boot_s", "region", "limit", "price_gb")
"""The fields that a worker type may have."""


class TypesError(ValueError):
    """The types cannot be used. The message names file, type and field, what was found and what was expected."""


def read_types(path: Path, boot_s: float) -> tuple[WorkerType, ...]:
    """Read the types of a file; a type without a boot time of its own has `boot_s`.

    Raises:
        TypesError: the file cannot be read, or a price or size is missing, negative or no number.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TypesError(f"{path}: cannot be read: {error}") from None
    return make_types(table, boot_s, str(path))


def make_types(table: Mapping[str, Any], boot_s: float, place: str) -> tuple[WorkerType, ...]:
    """Make the types of a table that has the fields of each type under its name.

    Raises:
        TypesError: as in `read_types`.
    """
    if not table:
        raise TypesError(f"{place}: found no type, expected a table for each, as [small] with rate and price_h")
    return tuple(_make(name, fields, boot_s, f"{place}: [{name}]") for name, fields in table.items())


def _make(name: str, fields: object, boot_s: float, place: str) -> WorkerType:
    if not isinstance(fields, Mapping):
        raise TypesError(f"{place}: found {fields!r}, expected a table with rate and price_h")
    unknown = sorted(set(fields) - set(_KEYS))
    if unknown:
        raise TypesError(f"{place} {unknown[0]}: no such field, expected {', '.join(_KEYS)}")
    limit = fields.get("limit")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise TypesError(f"{place} limit: found {limit!r}, expected a whole number of workers, 0 or more")
    region = fields.get("region", "")
    if not isinstance(region, str):
        raise TypesError(f"{place} region: found {region!r}, expected a name")
    return WorkerType(
        name,
        _number(fields, "rate", place, None, above=True),
        _number(fields, "price_h", place, None, above=True),
        _number(fields, "boot_s", place, boot_s),
        region,
        limit,
        _number(fields, "price_gb", place, 0.0),
    )


def _number(fields: Mapping[str, Any], key: str, place: str, default: float | None, *, above: bool = False) -> float:
    expected = "a number above 0" if above else "a number, 0 or more"
    value = fields.get(key, default)
    if value is None:
        raise TypesError(f"{place} {key}: found nothing, expected {expected}")
    right = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not right or value < 0 or (above and value == 0):
        raise TypesError(f"{place} {key}: found {value!r}, expected {expected}")
    return float(value)
