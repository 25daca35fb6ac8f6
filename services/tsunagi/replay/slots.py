"""`tsunagi replay`: computes the outputs of slots again from their logs, and compares them with `recovered`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tsunagi.recovery.model import Model
from tsunagi.recovery.store import load_from_store
from tsunagi.replay.compare import Comparison, compare
from tsunagi.replay.generations import generations, message_of
from tsunagi.replay.recompute import recompute
from tsunagi.runtime.log import RECOVERED, TUPLES, LogError, Record
from tsunagi.runtime.settings import Settings
from tsunagi.slot.config import SlotConfig
from tsunagi.system.topics import read_partition, tool_log


def replay_slots(settings: Settings, slots: Sequence[int], tell: Callable[[str], None]) -> int:
    """Replay slots of the configured log, and return the exit code: 1 if something differs, else 0.

    Args:
        slots: the slots to replay; empty means all.
        tell: called with each line of the report.

    Raises:
        LogError: the log does not answer, or has no such slot.
        ModelError: the store lacks a model that the log names.
    """
    source = tool_log(settings, "replay")
    count = source.partitions(TUPLES)
    for slot in slots:
        if not 0 <= slot < count:
            raise LogError(
                f"--slot: found {slot}, expected one of 0..{count - 1}, as `{settings.kafka.prefix}{TUPLES}` has them"
            )
    code = 0
    for slot in slots or range(count):
        # `recovered` is read first: the log then has the inputs of all outputs that were read.
        recovered = read_partition(source, RECOVERED, slot)
        result = replay_slot(read_partition(source, TUPLES, slot), recovered, settings.recovery.store)
        tell(
            f"slot {slot}: {result.outputs} outputs computed again, {result.compared} compared, "
            f"{result.repeats} repeats, {result.pending} not written yet, {result.unreadable} unreadable, "
            f"{result.disowned} of lost inputs, {result.differing} differences, "
            f"largest difference of a value {result.largest_sd:.2g} standard deviations"
        )
        for line in result.differences:
            tell(f"  {line}")
        code = code or int(result.differing > 0)
    return code


def replay_slot(tuples: Sequence[Record], recovered: Sequence[Record], store: Path) -> Comparison:
    """Compute a slot's outputs again from its log, and compare them with `recovered`.

    Args:
        store: the directory of the models that the log names.
    """
    scale: dict[int, float] = {}
    models: list[Model] = []

    def load(sha256: str) -> Model:
        models.append(load_from_store(store, sha256))
        return models[-1]

    recomputed = list(recompute(tuples, load))
    names = dict(_sensor_names(tuples))
    for model in models:
        by_name = dict(zip(model.names, model.scale.tolist(), strict=True))
        scale.update({sensor: by_name[name] for sensor, name in names.items() if name in by_name})
    return compare(recomputed, recovered, scale, generations(tuples))


def _sensor_names(tuples: Iterable[Record]) -> Iterator[tuple[int, str]]:
    for record in tuples:
        message = message_of(record)
        if message is not None and message.WhichOneof("body") == "settings":
            config = SlotConfig.parse(message.settings.text)
            yield from zip(config.sensors, config.model_names, strict=True)
