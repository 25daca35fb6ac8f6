"""Makes ``docs/reference/topics.md``: the table by which topics are made and checked."""

from __future__ import annotations

import sys
from pathlib import Path

from tsunagi.runtime.log import TOPICS
from tsunagi.runtime.settings import Settings
from tsunagi.runtime.topics import PARTITIONS, bound, topic_layout


def document() -> str:
    """Return the text of ``docs/reference/topics.md``."""
    layout = topic_layout(Settings())
    keys = sorted({key for _, config in layout.values() for key in config})
    lines = [
        "# Topics",
        "",
        'How topics are made, and what `[kafka] topics = "check"` looks for: every key, with found and expected in one',
        "list. Made by `make docs` from `services/tsunagi/runtime/topics.py`. Shown are the default settings:",
        "partitions follow `[slots] count`, `[spark] cores` and `[standby] cells` (`heartbeats`: one for each cell and",
        "one for all, or 1 with one cell); `retention.ms` and `segment.ms` follow",
        "`[kafka] retention_s`; `max.message.bytes` of `tuples` follows `[kafka] max_message_bytes`;",
        "the replication factor is at least `[kafka] replication`. The check needs the right DescribeConfigs. A user",
        "without it (every service of the profile `secure`) checks partitions and replication, so let the",
        "administrator run `tsunagi topics`.",
        "",
        f"| topic | {PARTITIONS} | {' | '.join(f'`{key}`' for key in keys)} |",
        f"|---|---|{'---|' * len(keys)}",
    ]
    for topic in TOPICS:
        partitions, config = layout[topic]
        cells = [f"{config[key]}{bound(topic, key, config[key])}" if key in config else "" for key in keys]
        lines.append(f"| `{topic}` | {partitions} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(), encoding="utf-8")
