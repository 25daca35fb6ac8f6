"""All metrics of the system, with name, unit, labels and help. ``docs/reference/metrics.md`` is made from this module.

A loop calls ``inc(n)`` once for each batch, and never for each tuple. Labels have few values: slots, nodes, edges,
groups, reasons.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from prometheus_client import Counter, Enum, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics import MetricWrapperBase

disable_created_metrics()  # type: ignore[no-untyped-call]  # nobody reads the time at which a counter was created

ROLES = ("none", "primary", "standby", "promoting", "rebuilding")
"""The roles that a node may have for a slot: those of `SlotBeat.role`, and "none" for a slot that it does not host."""

PHASES = ("detect", "promote", "catch_up")
"""The parts of a takeover, one after the other."""

SECTIONS: dict[str, tuple[MetricWrapperBase, ...]] = {}
"""All metrics by section, in the order of the documentation."""


def _section(title: str) -> None:
    """End a section of ``docs/reference/metrics.md``: it has all metrics above that are in no section yet."""
    earlier = set(itertools.chain.from_iterable(SECTIONS.values()))
    SECTIONS[title] = tuple(
        item for item in globals().values() if isinstance(item, MetricWrapperBase) and item not in earlier
    )


_TAKEOVER_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 10.0)
"""Upper ends of the buckets of takeover times, in seconds. A phase may take some milliseconds or some seconds."""
_LATENCY_BUCKETS_S = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 120.0)
"""Upper ends of the buckets of latencies, in seconds. After an outage latencies may reach minutes."""
_BATCH_BUCKETS_S = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
"""Upper ends of the buckets of Spark's batches, in seconds. They are finest where most batches are."""

DEAD_LETTERS = Counter(
    "tsunagi_dead_letters", "Records that could not be used and went to dead-letters.", ["topic", "reason"]
)
_section("Every service")

# The role is a set of series, one for each of `ROLES`, of which one has the value 1.
ROLE = Enum("tsunagi_slot_role", "What this node is for the slot (1 = it is that).", ["slot"], states=list(ROLES))
EPOCH = Gauge("tsunagi_slot_epoch", "Epoch of the slot's present ownership, as this node has read it.", ["slot"])
POSITION = Gauge("tsunagi_slot_position", "Offset in tuples of the next record this node processes.", ["slot"])
LAG_RECORDS = Gauge("tsunagi_slot_lag_records", "Records from the position to the end of the slot's log.", ["slot"])
STEP_CLOSED = Gauge("tsunagi_slot_step_closed", "The last step of the slot that closed.", ["slot"])
RECORD_COST_S = Gauge("tsunagi_slot_record_seconds", "Measured cost of processing one record.", ["slot"])
EDGES_OUT = Gauge("tsunagi_slot_edges_out", "Edges that the slot does not wait for at present.", ["slot"])
OUTPUTS_SENT = Counter("tsunagi_outputs_sent", "Records written to recovered (one a step and slot).", ["slot"])
SLOT_QUERY_ROWS = Counter(
    "tsunagi_slot_query_rows",
    "Rows of a query over tuples, or events of a stream, that the slot has written to recovered.",
    ["slot", "query"],
)
SLOT_QUERY_STATE_BYTES = Gauge(
    "tsunagi_slot_query_state_bytes",
    "Size of what a query over tuples keeps in the slot, when it was last measured.",
    ["slot", "query"],
)
SLOT_QUERY_STOPPED = Gauge(
    "tsunagi_slot_query_stopped",
    "1 = the query over tuples does not run in the slot (`tsunagi query list` says why).",
    ["slot", "query"],
)
LEARNER_STEPS = Gauge("tsunagi_learner_steps", "Steps of history that the learner has.")
LEARNER_ERROR = Gauge(
    "tsunagi_learner_error",
    "Error of the learned model in force on hidden readings, in standard deviations of their sensors.",
)
VALUES_RECOVERED = Counter("tsunagi_values", "Values in the outputs, by quality.", ["slot", "quality"])
RECOVERY_TRUTHS = Counter(
    "tsunagi_recovery_truths",
    "Values that were estimated while their truth was known, by sensor group.",
    ["slot", "group"],
)
RECOVERY_TRUTHS_WITHIN = Counter(
    "tsunagi_recovery_truths_within",
    "Those whose truth lay within the bound: their share should be delta.",
    ["slot", "group"],
)
RECOVERY_TRUTHS_BY = Counter(
    "tsunagi_recovery_truths_by",
    "The same values by what the estimate was like: kind level (how high it was), steps (since the sensor was last "
    "read) or missing (share of the slot's sensors that were).",
    ["slot", "kind", "class"],
)
RECOVERY_TRUTHS_WITHIN_BY = Counter(
    "tsunagi_recovery_truths_within_by",
    "Those whose truth lay within the bound, by the same: each class's share should be delta.",
    ["slot", "kind", "class"],
)
RECOVERY_WORST_SENSOR = Gauge(
    "tsunagi_recovery_worst_sensor_within",
    "Share of truths within their bounds of the sensor whose bounds hold least often, of those with 50 truths or more.",
    ["slot"],
)
RECOVERY_TRIED_STEPS = Gauge(
    "tsunagi_recovery_tried_steps",
    "Longest outage, in steps, that there were enough of for the group's bounds to be measured on; for longer ones "
    "they are never narrower than the fit's. Infinite: nothing was measured yet.",
    ["slot", "group"],
)
RECOVERY_OUTAGE_STEPS = Gauge(
    "tsunagi_recovery_outage_steps", "Steps for which the longest present outage of a sensor has lasted.", ["slot"]
)
CALIBRATION_FACTOR = Gauge(
    "tsunagi_recovery_calibration_factor",
    "What the model's standard deviations are multiplied by, median of a group.",
    ["slot", "group"],
)
DISTRUSTED = Gauge(
    "tsunagi_recovery_distrusted_sensors", "Sensors that fail alone: their readings count as missing.", ["slot"]
)
REFITS = Counter("tsunagi_recovery_refits", "Models that follow the data, made by the slot's owner.", ["slot"])
HELPERS = Gauge(
    "tsunagi_recovery_helpers", "Sensors of other slots that the recovery uses while edges are down.", ["slot"]
)
UNMET = Gauge(
    "tsunagi_recovery_unmet_sensors",
    "Lost sensors whose values will miss eps and delta while this lasts: no helper | cap | off | not calibrated.",
    ["slot", "reason"],
)
HELPER_READINGS = Counter(
    "tsunagi_recovery_helper_readings", "Readings of helpers, by what became of them: used | late.", ["slot", "state"]
)
WITHHELD = Counter(
    "tsunagi_recovery_withheld_values", "Values not sent since their bound was wider than eps.", ["slot"]
)
LATE = Counter("tsunagi_late", "Batches that came too late and went to late.", ["slot", "reason"])
VOID_CONTROL = Counter("tsunagi_void_control_records", "Control records that did not count at their place.", ["slot"])
CONTRADICTIONS = Counter(
    "tsunagi_log_contradictions",
    "Times that this node found the slot's log to be another one than it, or a context's author, had read.",
    ["slot"],
)
GENERATIONS_BEGUN = Counter(
    "tsunagi_generations_begun",
    "Generations that this node has begun because the slot's log lost records; what is lost `tsunagi status` says.",
    ["slot"],
)
LEVEL0_POSITION = Gauge(
    "tsunagi_slot_level0_position", "Offset in tuples up to which the downstream has received every output.", ["slot"]
)
LEVEL1_POSITION = Gauge(
    "tsunagi_slot_level1_position",
    "Offset in tuples of the slot's resume point: what is before it is not needed.",
    ["slot"],
)
CONTEXTS_WRITTEN = Counter("tsunagi_contexts_written", "Resume contexts written.", ["slot"])
CONTEXTS_FAILED = Counter(
    "tsunagi_contexts_failed",
    "Resume contexts that an operator's state kept from being written; until one is, takeovers read from the last.",
    ["slot"],
)
CONTEXT_BYTES = Gauge("tsunagi_context_bytes", "Size of the slot's newest resume context.", ["slot"])
_section("Gateway and secondary: a slot")

STANDBY_READY = Gauge("tsunagi_standby_ready", "1 = this node could take the slot over now.", ["slot"])
STANDBY_BATCH_TUPLES = Gauge(
    "tsunagi_standby_batch_tuples", "B: the secondary reads the log at so many tuples.", ["slot"]
)
STANDBY_BANDWIDTH = Gauge(
    "tsunagi_standby_bandwidth_bytes_per_second", "BW*: what the secondary reads, by the cost model.", ["slot"]
)
STANDBY_RECOVERY_S = Gauge(
    "tsunagi_standby_recovery_seconds", "R_time*: recovery time beyond detection, by the cost model.", ["slot"]
)
STANDBY_SEND_S = Gauge(
    "tsunagi_standby_send_seconds", "S_time: what reading a tuple costs the secondary, at B.", ["slot"]
)
STANDBY_PROCESS_S = Gauge(
    "tsunagi_standby_process_seconds", "R_ptime: what processing a tuple costs the secondary.", ["slot"]
)
STANDBY_SENDS = Gauge("tsunagi_standby_sends_per_second", "B_send: batches read a second.", ["slot"])
STANDBY_TUPLE_BYTES = Gauge(
    "tsunagi_standby_tuple_bytes", "Of a tuple on the network, with its part of what is around it.", ["slot"]
)
STANDBY_TAKEOVER_S = Gauge(
    "tsunagi_standby_takeover_seconds", "T_0: what a takeover costs that has nothing to process.", ["slot"]
)
STANDBY_LIMIT = Gauge("tsunagi_standby_limit", "The user's limits: bytes/s, seconds.", ["slot", "limit"])
STANDBY_LIMIT_OK = Gauge(
    "tsunagi_standby_limit_ok", "1 = the limit holds at the present B, by the cost model.", ["slot", "limit"]
)
STANDBY_PULLS = Counter("tsunagi_standby_pulls", "Ranges of the log that the secondary has read.", ["slot"])
STANDBY_BYTES = Counter("tsunagi_standby_bytes", "Bytes of records that the secondary has read.", ["slot"])
STANDBY_RECEIVED = Counter(
    "tsunagi_standby_received_bytes",
    "Bytes that this node has received for standing by, of all its slots, measured at the socket.",
)
STANDBY_REQUESTS = Counter(
    "tsunagi_standby_requests", "Requests that this node has sent for standing by, measured at the socket."
)
STANDBY_TRIMMED = Counter(
    "tsunagi_standby_trimmed_records", "Records that the secondary skipped, thanks to a Level-1-Ack.", ["slot"]
)
SPECULATIONS = Counter("tsunagi_speculations", "Weak suspicions at which the secondary wrote outputs.", ["slot"])
SPECULATIONS_IN_VAIN = Counter("tsunagi_speculations_in_vain", "Those after which the owner was heard again.", ["slot"])
SPECULATIVE_OUTPUTS = Counter(
    "tsunagi_speculative_outputs", "Outputs that the secondary wrote at a weak suspicion.", ["slot"]
)
SPECULATIVE_REPEATS = Counter(
    "tsunagi_speculative_repeats", "Those that the owner wrote as well; readers drop them by name.", ["slot"]
)
OVERLOADED_S = Gauge(
    "tsunagi_worker_overloaded_seconds",
    "For how long this worker's own slots have had more records than it can process; 0 = it keeps up.",
)
TAKEOVERS = Counter("tsunagi_takeovers", "Times that this node became the slot's owner after another.", ["slot"])
TAKEOVER_S = Histogram(
    "tsunagi_takeover_seconds", "Length of a takeover's parts.", ["slot", "phase"], buckets=_TAKEOVER_BUCKETS_S
)
HANDOVER_PAUSE_S = Histogram(
    "tsunagi_handover_pause_seconds",
    "Pause in a slot's outputs at a planned takeover: from the new owner's claim until it has caught up.",
    ["slot"],
    buckets=_TAKEOVER_BUCKETS_S,
)
_section("Standing by and taking over")

EDGE_ROWS = Counter("tsunagi_edge_rows_read", "Rows read from the source.", ["edge"])
EDGE_BATCHES = Counter("tsunagi_edge_batches_sent", "Batches that the log has taken.", ["edge"])
EDGE_SPOOL_RECORDS = Gauge("tsunagi_edge_spool_records", "Batches that wait for the log to take them.", ["edge"])
EDGE_SPOOL_BYTES = Gauge(
    "tsunagi_edge_spool_bytes", "Size of the file of batches that wait, 0 = none has to.", ["edge"]
)
EDGE_SPOOL_DROPPED = Counter("tsunagi_edge_spool_dropped", "Batches given up since the spool was full.", ["edge"])
EDGE_DISK_FAILS = Gauge(
    "tsunagi_edge_disk_fails",
    "1 = the disk does not take the spool or the position; they are kept in memory.",
    ["edge"],
)
EDGE_CLOCK_JUMPS = Counter("tsunagi_edge_clock_jumps", "Jumps of the edge's wall clock.", ["edge"])
EDGE_STEPS_SKIPPED = Counter("tsunagi_edge_steps_skipped", "Steps not sent, since their time was over.", ["edge"])
EDGE_ROWS_SKIPPED = Counter("tsunagi_edge_rows_skipped", "Rows not read, since their time was over.", ["edge"])
EDGE_UNUSABLE = Counter(
    "tsunagi_edge_unusable_readings",
    "Readings that no window took, by reason; docs/howto/sources.md says which of them stand in dead-letters.",
    ["edge", "reason"],
)
EDGE_UNPLACED = Counter("tsunagi_edge_unplaced_values", "Values not sent: their sensor has no slot yet.", ["edge"])
EDGE_LENT = Counter("tsunagi_edge_lent_values", "Values sent to slots that asked for helpers as well.", ["edge"])
EDGE_FILTERED = Counter(
    "tsunagi_edge_filtered_tuples", "Tuples not sent, since no query uses them ([query] at_edge).", ["edge"]
)
EDGE_STEP = Gauge("tsunagi_edge_step", "The newest step sent.", ["edge"])
EDGE_SOURCE_CONNECTED = Gauge(
    "tsunagi_edge_source_connected", "1 = the edge's source is there; 0 = it is waited for.", ["edge"]
)
EDGE_SOURCE_CONTRADICTED = Gauge(
    "tsunagi_edge_source_contradicted",
    "1 = the Kafka topic that the edge reads was made anew or lost its end since the edge read it.",
    ["edge"],
)
EDGE_SOURCE_QUEUE = Gauge(
    "tsunagi_edge_source_queue_readings", "Readings of a live source that have arrived and wait for the loop.", ["edge"]
)
_section("Edge")

SPARK_BATCH_S = Histogram("tsunagi_spark_batch_seconds", "Length of a batch.", buckets=_BATCH_BUCKETS_S)
SPARK_ROWS = Counter("tsunagi_spark_rows", "Result rows delivered (a row is a reading of a step).")
SPARK_BLOCKS = Counter("tsunagi_spark_blocks_sent", "Result blocks sent (one a group and step).")
SPARK_LATE_ROWS = Counter("tsunagi_spark_late_rows", "Rows below the frontier when they came; they went to late.")
SPARK_REPEATS = Counter("tsunagi_spark_repeats_dropped", "Records of recovered dropped because their name came before.")
SPARK_NAN_ROWS = Counter(
    "tsunagi_spark_nan_rows", "Rows of recovered whose value is not a number; they pass on as such."
)
SPARK_MERGED_ROWS = Counter("tsunagi_spark_merged_rows", "Result rows of groups that are cut over cores and merged.")
SPARK_FILE_ROWS = Counter("tsunagi_spark_file_rows", "Rows written to Parquet files ([results] files).")
SPARK_FILES_CONTRADICTED = Counter(
    "tsunagi_spark_files_contradicted",
    "Partitions of results that were not those that the Parquet files are of: made anew, or without their end.",
)
QUERY_ROWS = Gauge("tsunagi_query_rows", "Rows that the query in CQL has written since it began.", ["query"])
QUERY_STATE_BYTES = Gauge("tsunagi_query_state_bytes", "Size of what the query keeps between batches.", ["query"])
QUERY_LATE_ROWS = Gauge("tsunagi_query_late_rows", "Readings and events that came too late for the query.", ["query"])
QUERY_STOPPED = Gauge("tsunagi_query_stopped", "1 = the query does not run (`tsunagi query list` says why).", ["query"])
SPARK_TABLE_CHANGES = Counter("tsunagi_spark_table_changes", "Changes of which core works on which sensors.")
SPARK_CORE_ROWS = Counter("tsunagi_spark_core_rows", "Rows that the core has worked on.", ["core"])
SPARK_CARRIED = Gauge("tsunagi_spark_carried_rows", "Rows that wait for the frontier.")
SPARK_SET_ASIDE = Counter(
    "tsunagi_spark_set_aside_files",
    "Files of the checkpoint set aside at a start: not whole, of another version, or after the last whole batch.",
)
SPARK_LOG_FAULTS = Counter(
    "tsunagi_spark_log_faults",
    "Partitions found not to be what they were: made anew, without their end, or deleted before they were read.",
    ["topic"],
)
SPARK_CUT_BATCHES = Counter(
    "tsunagi_spark_cut_batches",
    "Batches larger than [spark] max_bytes, which were cut anew, with fewer records.",
)
SPARK_UNGROUPED = Gauge("tsunagi_spark_ungrouped_sensors", "Sensors without a group, which make up unknown_group.")
SPARK_STAGE_S = Gauge(
    "tsunagi_spark_stage_seconds", "Duration of each stage of the last batch, as Spark's progress tells it.", ["stage"]
)
SPARK_INPUT_AGE_S = Gauge(
    "tsunagi_spark_input_age_seconds",
    "Mean age of the records that the last batch read, by part: gateway = from the append of the last input to that of "
    "the output in recovered; waiting = from there until a task read it.",
    ["part"],
)
SPARK_LATENCY_S = Histogram(
    "tsunagi_spark_latency_seconds",
    "From the log's append of a step's last input to its block in results; the newest blocks of each batch.",
    buckets=_LATENCY_BUCKETS_S,
)
FRONTIER_HELD_BY = Gauge(
    "tsunagi_frontier_held_steps", "Steps by which the slot lags behind the newest; its groups wait for it.", ["slot"]
)
FRONTIER_STEP = Gauge("tsunagi_frontier_step", "The last step delivered in full.", ["group"])
FRONTIER_STALL_S = Gauge(
    "tsunagi_frontier_stall_seconds",
    "Seconds since the last step of a group was delivered: of the group that has waited longest.",
)
_section("Spark")

WORKERS = Gauge("tsunagi_scaler_workers", "Workers that the scaler knows, by state.", ["state"])
LAUNCHES = Counter("tsunagi_scaler_launches", "Workers that the scaler has started.")
PLAN_SERIAL = Gauge("tsunagi_scaler_plan_serial", "Serial number of the newest assignment.")
LEADS = Gauge("tsunagi_scaler_leads", "1 = this scaler acts; 0 = it listens, or one that was started later acts.")
WORKERS_OF_TYPE = Gauge(
    "tsunagi_scaler_workers_of_type", "Workers of a type: wanted | have | retiring.", ["type", "state"]
)
WORKERS_LOST = Counter("tsunagi_scaler_workers_lost", "Workers that died without having been told to go.")
STOPS = Counter("tsunagi_scaler_stops", "Workers that the scaler has stopped.")
MOVES = Counter(
    "tsunagi_scaler_moves", "Slots that a planned takeover has moved, by how it ended: done | given up.", ["end"]
)
MOVING = Gauge("tsunagi_scaler_moving_slots", "Slots on their way from one worker to another.")
SHARE = Gauge("tsunagi_scaler_worker_share", "Share of all arriving tuples whose slots a worker owns.", ["node"])
SLOT_RATE = Gauge("tsunagi_slot_arrival_tuples_per_second", "Tuples that arrive in the slot's log.", ["slot"])
SLOT_BACKLOG = Gauge(
    "tsunagi_slot_backlog_tuples", "Tuples in the slot's log that its owner has not processed.", ["slot"]
)
SLOT_DELAY_S = Gauge(
    "tsunagi_slot_delay_seconds", "Age in the log of the oldest tuple that the owner has not processed.", ["slot"]
)
TYPE_RATE = Gauge(
    "tsunagi_scaler_type_tuples_per_second",
    "What one worker of a type processes, benchmarked and then corrected by what saturated ones do.",
    ["type"],
)
TYPE_DELAY_S = Gauge(
    "tsunagi_scaler_type_delay_seconds",
    "How long tuples waited for the workers of a type in the last half minute; those being given slots are left out.",
    ["type"],
)
TYPE_WITHIN = Gauge(
    "tsunagi_scaler_type_within_share",
    "Share of its rate with which a type keeps the promised delay: less than 1 where its workers stall.",
    ["type"],
)
DECISIONS = Counter(
    "tsunagi_scaler_decisions", "Decisions of the scaling policy: slot | guard (between slots).", ["kind"]
)
FALLBACKS = Counter("tsunagi_scaler_fallbacks", "Decisions in which a stated rule stood in for the policy's own.")
PLANNED_RATE = Gauge(
    "tsunagi_scaler_planned_tuples_per_second",
    "The policy's forecast, the quantile planned for, and the capacity of what it wants.",
    ["what"],
)
_section("Scaler")

# As the scaler sees them, so that a dead one is seen too.
HEARTBEAT_AGE_S = Gauge(
    "tsunagi_heartbeat_age_seconds",
    "Seconds since a node's last heartbeat; gone when the node has left, or was silent for ten minutes.",
    ["node", "role"],
)
HEARTBEATS_REFUSED = Counter(
    "tsunagi_heartbeats_refused", "Heartbeats whose name, role or address is none: they are no targets.", ["reason"]
)
SLOT_PROTECTED = Gauge(
    "tsunagi_slot_protected", "1 = a living node owns the slot and another one could take it over now.", ["slot"]
)
SLOT_SILENCE_S = Gauge(
    "tsunagi_slot_silence_seconds",
    "Seconds since the slot last wrote an output to recovered, by its Level-0-Acks; none before the first.",
    ["slot"],
)
SLOT_RESUME_AGE_S = Gauge(
    "tsunagi_slot_resume_age_seconds",
    "Age of the newest record before the slot's resume point (or of its first owner): what is younger is needed.",
    ["slot"],
)
SPARK_LAG_S = Gauge(
    "tsunagi_spark_lag_seconds",
    "For how long the oldest output of the slot has waited that Spark has not taken in.",
    ["slot"],
)
STEP_S = Gauge("tsunagi_step_seconds", "Length of a step ([steps] slide x interval_s).")
RETENTION_S = Gauge("tsunagi_retention_seconds", "How long the log keeps tuples and recovered ([kafka] retention_s).")
_section("Scaler: nodes and slots from outside")

SINK_ROWS = Counter("tsunagi_sink_rows", "Rows that the sink has written, each time it wrote them.", ["sink"])
SINK_CORRECTIONS = Counter(
    "tsunagi_sink_corrections", "Estimated values of which the sink has handed on the truth that came late.", ["sink"]
)
SINK_REFUSED = Counter(
    "tsunagi_sink_refused_rows", "Rows that the sink's target refused; they went to dead-letters.", ["sink"]
)
SINK_REPEATS = Counter("tsunagi_sink_repeats", "Blocks of results that the sink dropped as repeats, by name.", ["sink"])
SINK_LOST = Counter(
    "tsunagi_sink_lost_records", "Records that the log no longer had when the sink came to read them.", ["sink"]
)
SINK_LAG = Gauge("tsunagi_sink_lag_records", "Records of the sink's partitions that it has not written yet.", ["sink"])
SINK_UP = Gauge("tsunagi_sink_up", "1 = the sink's target takes what the sink writes.", ["sink"])
SINK_WRITE_S = Histogram(
    "tsunagi_sink_write_seconds", "Length of one write to the sink's target.", ["sink"], buckets=_BATCH_BUCKETS_S
)
_section("Sinks")

# As the broker's container sees it (services/tsunagi/broker/container.py).
KAFKA_UP = Gauge("tsunagi_kafka_up", "1 = the broker takes connections.")
KAFKA_DISK_FREE_BYTES = Gauge("tsunagi_kafka_disk_free_bytes", "Free space of the file system that holds the log.")
KAFKA_DISK_TOTAL_BYTES = Gauge("tsunagi_kafka_disk_total_bytes", "Size of the file system that holds the log.")
KAFKA_LOG_BYTES = Gauge("tsunagi_kafka_log_bytes", "Disk space that a topic's log takes on this broker.", ["topic"])
KAFKA_DENIED = Counter("tsunagi_kafka_denied", "Requests that the broker's access rules have refused.")
_section("Kafka")


def document() -> str:
    """Return the text of ``docs/reference/metrics.md``."""
    lines = [
        "# Metrics",
        "",
        "Every service serves them at `/metrics` for Prometheus; `tsunagi status` shows the ports. Made by `make docs`",
        "from `services/tsunagi/runtime/metrics.py`. Times are in seconds, positions are offsets in the named topic.",
    ]
    for title, metrics in SECTIONS.items():
        lines += ["", f"## {title}", "", "| name | type | labels | meaning |", "|---|---|---|---|"]
        lines += [_row(metric) for metric in metrics]
    return "\n".join(lines) + "\n"


def _row(metric: MetricWrapperBase) -> str:
    family = next(iter(metric.describe()))
    name = family.name + ("_total" if family.type == "counter" else "")
    kind = "gauge" if family.type == "stateset" else family.type
    labels = list(metric._labelnames)  # noqa: SLF001 - the library offers no other way to ask
    if isinstance(metric, Enum):
        labels.append(family.name)
    return f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels) or '-'} | {family.documentation} |"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(), encoding="utf-8")
