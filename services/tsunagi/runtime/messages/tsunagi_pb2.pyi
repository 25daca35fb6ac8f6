from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Quality(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXACT: _ClassVar[Quality]
    BOUNDED: _ClassVar[Quality]
    UNBOUNDED: _ClassVar[Quality]
    UNMODELLED: _ClassVar[Quality]
EXACT: Quality
BOUNDED: Quality
UNBOUNDED: Quality
UNMODELLED: Quality

class LogRecord(_message.Message):
    __slots__ = ("version", "batch", "ownership", "edge_out", "model", "settings", "quarantine", "punctuation", "calibrated", "sensor_out", "helpers", "past", "serial", "mac")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    OWNERSHIP_FIELD_NUMBER: _ClassVar[int]
    EDGE_OUT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    PUNCTUATION_FIELD_NUMBER: _ClassVar[int]
    CALIBRATED_FIELD_NUMBER: _ClassVar[int]
    SENSOR_OUT_FIELD_NUMBER: _ClassVar[int]
    HELPERS_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    version: int
    batch: TupleBatch
    ownership: Ownership
    edge_out: EdgeOut
    model: ModelChange
    settings: SlotSettings
    quarantine: Quarantine
    punctuation: Punctuation
    calibrated: Calibrated
    sensor_out: SensorOut
    helpers: Helpers
    past: Past
    serial: int
    mac: bytes
    def __init__(self, version: _Optional[int] = ..., batch: _Optional[_Union[TupleBatch, _Mapping]] = ..., ownership: _Optional[_Union[Ownership, _Mapping]] = ..., edge_out: _Optional[_Union[EdgeOut, _Mapping]] = ..., model: _Optional[_Union[ModelChange, _Mapping]] = ..., settings: _Optional[_Union[SlotSettings, _Mapping]] = ..., quarantine: _Optional[_Union[Quarantine, _Mapping]] = ..., punctuation: _Optional[_Union[Punctuation, _Mapping]] = ..., calibrated: _Optional[_Union[Calibrated, _Mapping]] = ..., sensor_out: _Optional[_Union[SensorOut, _Mapping]] = ..., helpers: _Optional[_Union[Helpers, _Mapping]] = ..., past: _Optional[_Union[Past, _Mapping]] = ..., serial: _Optional[int] = ..., mac: _Optional[bytes] = ...) -> None: ...

class TupleBatch(_message.Message):
    __slots__ = ("edge", "incarnation", "step", "event_time_us", "sensor", "value", "count", "offset", "helper", "helper_value", "column", "events")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_US_FIELD_NUMBER: _ClassVar[int]
    SENSOR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HELPER_FIELD_NUMBER: _ClassVar[int]
    HELPER_VALUE_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    edge: str
    incarnation: int
    step: int
    event_time_us: int
    sensor: bytes
    value: bytes
    count: bytes
    offset: int
    helper: bytes
    helper_value: bytes
    column: _containers.RepeatedCompositeFieldContainer[TypedColumn]
    events: _containers.RepeatedCompositeFieldContainer[Events]
    def __init__(self, edge: _Optional[str] = ..., incarnation: _Optional[int] = ..., step: _Optional[int] = ..., event_time_us: _Optional[int] = ..., sensor: _Optional[bytes] = ..., value: _Optional[bytes] = ..., count: _Optional[bytes] = ..., offset: _Optional[int] = ..., helper: _Optional[bytes] = ..., helper_value: _Optional[bytes] = ..., column: _Optional[_Iterable[_Union[TypedColumn, _Mapping]]] = ..., events: _Optional[_Iterable[_Union[Events, _Mapping]]] = ...) -> None: ...

class Events(_message.Message):
    __slots__ = ("stream", "rows", "column")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    stream: str
    rows: int
    column: _containers.RepeatedCompositeFieldContainer[TypedColumn]
    def __init__(self, stream: _Optional[str] = ..., rows: _Optional[int] = ..., column: _Optional[_Iterable[_Union[TypedColumn, _Mapping]]] = ...) -> None: ...

class Ownership(_message.Message):
    __slots__ = ("epoch", "node", "generation", "first_step", "settings_hash", "founding")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_HASH_FIELD_NUMBER: _ClassVar[int]
    FOUNDING_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    node: str
    generation: int
    first_step: int
    settings_hash: str
    founding: Founding
    def __init__(self, epoch: _Optional[int] = ..., node: _Optional[str] = ..., generation: _Optional[int] = ..., first_step: _Optional[int] = ..., settings_hash: _Optional[str] = ..., founding: _Optional[_Union[Founding, _Mapping]] = ...) -> None: ...

class Founding(_message.Message):
    __slots__ = ("begin", "blank", "lost_from", "lost_to", "reason")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    BLANK_FIELD_NUMBER: _ClassVar[int]
    LOST_FROM_FIELD_NUMBER: _ClassVar[int]
    LOST_TO_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    begin: int
    blank: bool
    lost_from: int
    lost_to: int
    reason: str
    def __init__(self, begin: _Optional[int] = ..., blank: _Optional[bool] = ..., lost_from: _Optional[int] = ..., lost_to: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class EdgeOut(_message.Message):
    __slots__ = ("epoch", "edge", "from_step")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    edge: str
    from_step: int
    def __init__(self, epoch: _Optional[int] = ..., edge: _Optional[str] = ..., from_step: _Optional[int] = ...) -> None: ...

class ModelChange(_message.Message):
    __slots__ = ("epoch", "sha256", "refit_of")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    REFIT_OF_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sha256: str
    refit_of: str
    def __init__(self, epoch: _Optional[int] = ..., sha256: _Optional[str] = ..., refit_of: _Optional[str] = ...) -> None: ...

class SlotSettings(_message.Message):
    __slots__ = ("epoch", "hash", "text")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    hash: str
    text: str
    def __init__(self, epoch: _Optional[int] = ..., hash: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Quarantine(_message.Message):
    __slots__ = ("epoch", "offset")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    offset: int
    def __init__(self, epoch: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Punctuation(_message.Message):
    __slots__ = ("epoch", "step")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Calibrated(_message.Message):
    __slots__ = ("epoch", "model", "factor", "group", "slope", "centre", "tried")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SLOPE_FIELD_NUMBER: _ClassVar[int]
    CENTRE_FIELD_NUMBER: _ClassVar[int]
    TRIED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    model: str
    factor: bytes
    group: bytes
    slope: bytes
    centre: bytes
    tried: bytes
    def __init__(self, epoch: _Optional[int] = ..., model: _Optional[str] = ..., factor: _Optional[bytes] = ..., group: _Optional[bytes] = ..., slope: _Optional[bytes] = ..., centre: _Optional[bytes] = ..., tried: _Optional[bytes] = ...) -> None: ...

class SensorOut(_message.Message):
    __slots__ = ("epoch", "model", "sensor", "out", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SENSOR_FIELD_NUMBER: _ClassVar[int]
    OUT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    model: str
    sensor: int
    out: bool
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., model: _Optional[str] = ..., sensor: _Optional[int] = ..., out: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class Helpers(_message.Message):
    __slots__ = ("epoch", "model", "sensor", "name", "edge")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SENSOR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    model: str
    sensor: bytes
    name: _containers.RepeatedScalarFieldContainer[str]
    edge: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., model: _Optional[str] = ..., sensor: _Optional[bytes] = ..., name: _Optional[_Iterable[str]] = ..., edge: _Optional[_Iterable[str]] = ...) -> None: ...

class Past(_message.Message):
    __slots__ = ("epoch", "query", "from_us", "begin", "upto", "batch", "appended_us")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    FROM_US_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    APPENDED_US_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    query: str
    from_us: int
    begin: int
    upto: int
    batch: _containers.RepeatedCompositeFieldContainer[TupleBatch]
    appended_us: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., query: _Optional[str] = ..., from_us: _Optional[int] = ..., begin: _Optional[int] = ..., upto: _Optional[int] = ..., batch: _Optional[_Iterable[_Union[TupleBatch, _Mapping]]] = ..., appended_us: _Optional[_Iterable[int]] = ...) -> None: ...

class Recovered(_message.Message):
    __slots__ = ("version", "slot", "generation", "offset", "index", "epoch", "step", "event_time_us", "appended_us", "sensor", "mean", "sd", "quality", "bound", "query", "rows", "column", "run")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_US_FIELD_NUMBER: _ClassVar[int]
    APPENDED_US_FIELD_NUMBER: _ClassVar[int]
    SENSOR_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    SD_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    version: int
    slot: int
    generation: int
    offset: int
    index: int
    epoch: int
    step: int
    event_time_us: int
    appended_us: int
    sensor: bytes
    mean: bytes
    sd: bytes
    quality: bytes
    bound: bytes
    query: str
    rows: int
    column: _containers.RepeatedCompositeFieldContainer[TypedColumn]
    run: OutputRun
    def __init__(self, version: _Optional[int] = ..., slot: _Optional[int] = ..., generation: _Optional[int] = ..., offset: _Optional[int] = ..., index: _Optional[int] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., event_time_us: _Optional[int] = ..., appended_us: _Optional[int] = ..., sensor: _Optional[bytes] = ..., mean: _Optional[bytes] = ..., sd: _Optional[bytes] = ..., quality: _Optional[bytes] = ..., bound: _Optional[bytes] = ..., query: _Optional[str] = ..., rows: _Optional[int] = ..., column: _Optional[_Iterable[_Union[TypedColumn, _Mapping]]] = ..., run: _Optional[_Union[OutputRun, _Mapping]] = ...) -> None: ...

class OutputRun(_message.Message):
    __slots__ = ("offset", "step", "event_time_us", "appended_us", "sensor", "mean")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_US_FIELD_NUMBER: _ClassVar[int]
    APPENDED_US_FIELD_NUMBER: _ClassVar[int]
    SENSOR_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    offset: bytes
    step: bytes
    event_time_us: bytes
    appended_us: bytes
    sensor: bytes
    mean: bytes
    def __init__(self, offset: _Optional[bytes] = ..., step: _Optional[bytes] = ..., event_time_us: _Optional[bytes] = ..., appended_us: _Optional[bytes] = ..., sensor: _Optional[bytes] = ..., mean: _Optional[bytes] = ...) -> None: ...

class ResultBlock(_message.Message):
    __slots__ = ("version", "query", "group", "step", "event_time_us", "appended_us", "sensor", "mean", "sd", "quality", "bound", "q1", "q2", "q3", "part", "parts", "window", "column", "rows", "definition", "run")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_US_FIELD_NUMBER: _ClassVar[int]
    APPENDED_US_FIELD_NUMBER: _ClassVar[int]
    SENSOR_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    SD_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    Q1_FIELD_NUMBER: _ClassVar[int]
    Q2_FIELD_NUMBER: _ClassVar[int]
    Q3_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    version: int
    query: str
    group: str
    step: int
    event_time_us: int
    appended_us: int
    sensor: bytes
    mean: bytes
    sd: bytes
    quality: bytes
    bound: bytes
    q1: bytes
    q2: bytes
    q3: bytes
    part: int
    parts: int
    window: Window
    column: _containers.RepeatedCompositeFieldContainer[TypedColumn]
    rows: int
    definition: str
    run: int
    def __init__(self, version: _Optional[int] = ..., query: _Optional[str] = ..., group: _Optional[str] = ..., step: _Optional[int] = ..., event_time_us: _Optional[int] = ..., appended_us: _Optional[int] = ..., sensor: _Optional[bytes] = ..., mean: _Optional[bytes] = ..., sd: _Optional[bytes] = ..., quality: _Optional[bytes] = ..., bound: _Optional[bytes] = ..., q1: _Optional[bytes] = ..., q2: _Optional[bytes] = ..., q3: _Optional[bytes] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., window: _Optional[_Union[Window, _Mapping]] = ..., column: _Optional[_Iterable[_Union[TypedColumn, _Mapping]]] = ..., rows: _Optional[int] = ..., definition: _Optional[str] = ..., run: _Optional[int] = ...) -> None: ...

class TypedColumn(_message.Message):
    __slots__ = ("name", "kind", "value", "valid", "text", "low", "high", "sd")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    VALID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    SD_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: str
    value: bytes
    valid: bytes
    text: _containers.RepeatedScalarFieldContainer[str]
    low: bytes
    high: bytes
    sd: bytes
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[str] = ..., value: _Optional[bytes] = ..., valid: _Optional[bytes] = ..., text: _Optional[_Iterable[str]] = ..., low: _Optional[bytes] = ..., high: _Optional[bytes] = ..., sd: _Optional[bytes] = ...) -> None: ...

class Window(_message.Message):
    __slots__ = ("length_us", "sum", "minimum", "maximum", "sum_sd", "extreme_sd")
    LENGTH_US_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    SUM_SD_FIELD_NUMBER: _ClassVar[int]
    EXTREME_SD_FIELD_NUMBER: _ClassVar[int]
    length_us: int
    sum: bytes
    minimum: bytes
    maximum: bytes
    sum_sd: bytes
    extreme_sd: bytes
    def __init__(self, length_us: _Optional[int] = ..., sum: _Optional[bytes] = ..., minimum: _Optional[bytes] = ..., maximum: _Optional[bytes] = ..., sum_sd: _Optional[bytes] = ..., extreme_sd: _Optional[bytes] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("version", "level0", "level1", "mac")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEVEL0_FIELD_NUMBER: _ClassVar[int]
    LEVEL1_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    version: int
    level0: Level0Ack
    level1: Level1Ack
    mac: bytes
    def __init__(self, version: _Optional[int] = ..., level0: _Optional[_Union[Level0Ack, _Mapping]] = ..., level1: _Optional[_Union[Level1Ack, _Mapping]] = ..., mac: _Optional[bytes] = ...) -> None: ...

class Level0Ack(_message.Message):
    __slots__ = ("slot", "node", "epoch", "generation", "offset", "last_offset", "last_index", "topic_id", "digest", "recovered_end")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_END_FIELD_NUMBER: _ClassVar[int]
    slot: int
    node: str
    epoch: int
    generation: int
    offset: int
    last_offset: int
    last_index: int
    topic_id: str
    digest: int
    recovered_end: int
    def __init__(self, slot: _Optional[int] = ..., node: _Optional[str] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., last_index: _Optional[int] = ..., topic_id: _Optional[str] = ..., digest: _Optional[int] = ..., recovered_end: _Optional[int] = ...) -> None: ...

class Level1Ack(_message.Message):
    __slots__ = ("slot", "node", "epoch", "generation", "offset", "context_offset", "last_offset", "last_index", "context_bytes", "appended_us")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    APPENDED_US_FIELD_NUMBER: _ClassVar[int]
    slot: int
    node: str
    epoch: int
    generation: int
    offset: int
    context_offset: int
    last_offset: int
    last_index: int
    context_bytes: int
    appended_us: int
    def __init__(self, slot: _Optional[int] = ..., node: _Optional[str] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., offset: _Optional[int] = ..., context_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., last_index: _Optional[int] = ..., context_bytes: _Optional[int] = ..., appended_us: _Optional[int] = ...) -> None: ...

class Context(_message.Message):
    __slots__ = ("version", "slot", "generation", "epoch", "owner", "offset", "last_offset", "last_index", "settings", "model_sha256", "cursor", "punctuated", "edges", "open", "operators", "quarantined", "serial", "helpers", "refit_of", "topic_id", "digest", "founding", "part", "parts", "piece", "mac")
    class OperatorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    PUNCTUATED_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    HELPERS_FIELD_NUMBER: _ClassVar[int]
    REFIT_OF_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FOUNDING_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    version: int
    slot: int
    generation: int
    epoch: int
    owner: str
    offset: int
    last_offset: int
    last_index: int
    settings: SlotSettings
    model_sha256: str
    cursor: int
    punctuated: int
    edges: _containers.RepeatedCompositeFieldContainer[EdgeState]
    open: _containers.RepeatedCompositeFieldContainer[TupleBatch]
    operators: _containers.ScalarMap[str, bytes]
    quarantined: _containers.RepeatedScalarFieldContainer[int]
    serial: int
    helpers: Helpers
    refit_of: str
    topic_id: str
    digest: int
    founding: Founding
    part: int
    parts: int
    piece: bytes
    mac: bytes
    def __init__(self, version: _Optional[int] = ..., slot: _Optional[int] = ..., generation: _Optional[int] = ..., epoch: _Optional[int] = ..., owner: _Optional[str] = ..., offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., last_index: _Optional[int] = ..., settings: _Optional[_Union[SlotSettings, _Mapping]] = ..., model_sha256: _Optional[str] = ..., cursor: _Optional[int] = ..., punctuated: _Optional[int] = ..., edges: _Optional[_Iterable[_Union[EdgeState, _Mapping]]] = ..., open: _Optional[_Iterable[_Union[TupleBatch, _Mapping]]] = ..., operators: _Optional[_Mapping[str, bytes]] = ..., quarantined: _Optional[_Iterable[int]] = ..., serial: _Optional[int] = ..., helpers: _Optional[_Union[Helpers, _Mapping]] = ..., refit_of: _Optional[str] = ..., topic_id: _Optional[str] = ..., digest: _Optional[int] = ..., founding: _Optional[_Union[Founding, _Mapping]] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., piece: _Optional[bytes] = ..., mac: _Optional[bytes] = ...) -> None: ...

class EdgeState(_message.Message):
    __slots__ = ("edge", "incarnation", "last_step", "out_from", "out_us")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    OUT_FROM_FIELD_NUMBER: _ClassVar[int]
    OUT_US_FIELD_NUMBER: _ClassVar[int]
    edge: str
    incarnation: int
    last_step: int
    out_from: int
    out_us: int
    def __init__(self, edge: _Optional[str] = ..., incarnation: _Optional[int] = ..., last_step: _Optional[int] = ..., out_from: _Optional[int] = ..., out_us: _Optional[int] = ...) -> None: ...

class Filled(_message.Message):
    __slots__ = ("upto", "kept_from", "done", "newest_us", "edges", "kept", "queries")
    UPTO_FIELD_NUMBER: _ClassVar[int]
    KEPT_FROM_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_US_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    upto: int
    kept_from: int
    done: bool
    newest_us: int
    edges: _containers.RepeatedCompositeFieldContainer[EdgeState]
    kept: Past
    queries: bytes
    def __init__(self, upto: _Optional[int] = ..., kept_from: _Optional[int] = ..., done: _Optional[bool] = ..., newest_us: _Optional[int] = ..., edges: _Optional[_Iterable[_Union[EdgeState, _Mapping]]] = ..., kept: _Optional[_Union[Past, _Mapping]] = ..., queries: _Optional[bytes] = ...) -> None: ...

class Arrays(_message.Message):
    __slots__ = ("array",)
    class ArrayEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Array
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Array, _Mapping]] = ...) -> None: ...
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    array: _containers.MessageMap[str, Array]
    def __init__(self, array: _Optional[_Mapping[str, Array]] = ...) -> None: ...

class Array(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("version", "node", "role", "incarnation", "sequence", "sent_us", "leaving", "metrics_port", "pid", "slots", "step", "metrics_host", "spark", "learner", "table", "sink", "overloaded_ms", "mac")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SENT_US_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    METRICS_PORT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    METRICS_HOST_FIELD_NUMBER: _ClassVar[int]
    SPARK_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SINK_FIELD_NUMBER: _ClassVar[int]
    OVERLOADED_MS_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    version: int
    node: str
    role: str
    incarnation: int
    sequence: int
    sent_us: int
    leaving: bool
    metrics_port: int
    pid: int
    slots: _containers.RepeatedCompositeFieldContainer[SlotBeat]
    step: int
    metrics_host: str
    spark: SparkBeat
    learner: LearnerBeat
    table: int
    sink: SinkBeat
    overloaded_ms: int
    mac: bytes
    def __init__(self, version: _Optional[int] = ..., node: _Optional[str] = ..., role: _Optional[str] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., sent_us: _Optional[int] = ..., leaving: _Optional[bool] = ..., metrics_port: _Optional[int] = ..., pid: _Optional[int] = ..., slots: _Optional[_Iterable[_Union[SlotBeat, _Mapping]]] = ..., step: _Optional[int] = ..., metrics_host: _Optional[str] = ..., spark: _Optional[_Union[SparkBeat, _Mapping]] = ..., learner: _Optional[_Union[LearnerBeat, _Mapping]] = ..., table: _Optional[int] = ..., sink: _Optional[_Union[SinkBeat, _Mapping]] = ..., overloaded_ms: _Optional[int] = ..., mac: _Optional[bytes] = ...) -> None: ...

class SinkBeat(_message.Message):
    __slots__ = ("sink", "lag", "rows", "refused", "fault")
    SINK_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    sink: str
    lag: int
    rows: int
    refused: int
    fault: str
    def __init__(self, sink: _Optional[str] = ..., lag: _Optional[int] = ..., rows: _Optional[int] = ..., refused: _Optional[int] = ..., fault: _Optional[str] = ...) -> None: ...

class LearnerBeat(_message.Message):
    __slots__ = ("steps", "needed", "fitting", "fault", "out")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    FITTING_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    OUT_FIELD_NUMBER: _ClassVar[int]
    steps: int
    needed: int
    fitting: bool
    fault: str
    out: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, steps: _Optional[int] = ..., needed: _Optional[int] = ..., fitting: _Optional[bool] = ..., fault: _Optional[str] = ..., out: _Optional[_Iterable[str]] = ...) -> None: ...

class SparkBeat(_message.Message):
    __slots__ = ("batch", "batch_us", "latency_us", "frontier", "newest", "held_by", "left_behind", "carried", "order", "cut", "fault", "query")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    BATCH_US_FIELD_NUMBER: _ClassVar[int]
    LATENCY_US_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    LEFT_BEHIND_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    batch: int
    batch_us: int
    latency_us: int
    frontier: int
    newest: int
    held_by: _containers.RepeatedScalarFieldContainer[int]
    left_behind: _containers.RepeatedScalarFieldContainer[int]
    carried: int
    order: str
    cut: int
    fault: str
    query: _containers.RepeatedCompositeFieldContainer[QueryBeat]
    def __init__(self, batch: _Optional[int] = ..., batch_us: _Optional[int] = ..., latency_us: _Optional[int] = ..., frontier: _Optional[int] = ..., newest: _Optional[int] = ..., held_by: _Optional[_Iterable[int]] = ..., left_behind: _Optional[_Iterable[int]] = ..., carried: _Optional[int] = ..., order: _Optional[str] = ..., cut: _Optional[int] = ..., fault: _Optional[str] = ..., query: _Optional[_Iterable[_Union[QueryBeat, _Mapping]]] = ...) -> None: ...

class QueryBeat(_message.Message):
    __slots__ = ("name", "since", "rows", "state_bytes", "late", "fault", "filled_to")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    FILLED_TO_FIELD_NUMBER: _ClassVar[int]
    name: str
    since: int
    rows: int
    state_bytes: int
    late: int
    fault: str
    filled_to: int
    def __init__(self, name: _Optional[str] = ..., since: _Optional[int] = ..., rows: _Optional[int] = ..., state_bytes: _Optional[int] = ..., late: _Optional[int] = ..., fault: _Optional[str] = ..., filled_to: _Optional[int] = ...) -> None: ...

class SlotBeat(_message.Message):
    __slots__ = ("slot", "role", "epoch", "position", "busy_offset", "busy_until", "busy_us", "ready", "reason", "step", "record_us", "batch_size", "lag", "record_tuples", "taking_up", "send_us", "wait_us", "busy_limit_us", "declared", "query", "move_us")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BUSY_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BUSY_UNTIL_FIELD_NUMBER: _ClassVar[int]
    BUSY_US_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RECORD_US_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    RECORD_TUPLES_FIELD_NUMBER: _ClassVar[int]
    TAKING_UP_FIELD_NUMBER: _ClassVar[int]
    SEND_US_FIELD_NUMBER: _ClassVar[int]
    WAIT_US_FIELD_NUMBER: _ClassVar[int]
    BUSY_LIMIT_US_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    MOVE_US_FIELD_NUMBER: _ClassVar[int]
    slot: int
    role: str
    epoch: int
    position: int
    busy_offset: int
    busy_until: int
    busy_us: int
    ready: bool
    reason: str
    step: int
    record_us: float
    batch_size: int
    lag: int
    record_tuples: float
    taking_up: bool
    send_us: float
    wait_us: int
    busy_limit_us: int
    declared: str
    query: _containers.RepeatedCompositeFieldContainer[QueryBeat]
    move_us: int
    def __init__(self, slot: _Optional[int] = ..., role: _Optional[str] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., busy_offset: _Optional[int] = ..., busy_until: _Optional[int] = ..., busy_us: _Optional[int] = ..., ready: _Optional[bool] = ..., reason: _Optional[str] = ..., step: _Optional[int] = ..., record_us: _Optional[float] = ..., batch_size: _Optional[int] = ..., lag: _Optional[int] = ..., record_tuples: _Optional[float] = ..., taking_up: _Optional[bool] = ..., send_us: _Optional[float] = ..., wait_us: _Optional[int] = ..., busy_limit_us: _Optional[int] = ..., declared: _Optional[str] = ..., query: _Optional[_Iterable[_Union[QueryBeat, _Mapping]]] = ..., move_us: _Optional[int] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("version", "assignment", "placement", "helpers", "target", "recovery", "workers", "system", "query", "model", "table", "act", "move", "serial", "mac")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    HELPERS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ACT_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    version: int
    assignment: Assignment
    placement: Placement
    helpers: HelperRequest
    target: StandbyTarget
    recovery: RecoveryTarget
    workers: Workers
    system: System
    query: QueryChange
    model: ModelTarget
    table: FleetTable
    act: Act
    move: SlotMove
    serial: int
    mac: bytes
    def __init__(self, version: _Optional[int] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., helpers: _Optional[_Union[HelperRequest, _Mapping]] = ..., target: _Optional[_Union[StandbyTarget, _Mapping]] = ..., recovery: _Optional[_Union[RecoveryTarget, _Mapping]] = ..., workers: _Optional[_Union[Workers, _Mapping]] = ..., system: _Optional[_Union[System, _Mapping]] = ..., query: _Optional[_Union[QueryChange, _Mapping]] = ..., model: _Optional[_Union[ModelTarget, _Mapping]] = ..., table: _Optional[_Union[FleetTable, _Mapping]] = ..., act: _Optional[_Union[Act, _Mapping]] = ..., move: _Optional[_Union[SlotMove, _Mapping]] = ..., serial: _Optional[int] = ..., mac: _Optional[bytes] = ...) -> None: ...

class System(_message.Message):
    __slots__ = ("id", "prefix", "made_us", "by")
    ID_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    MADE_US_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    id: str
    prefix: str
    made_us: int
    by: str
    def __init__(self, id: _Optional[str] = ..., prefix: _Optional[str] = ..., made_us: _Optional[int] = ..., by: _Optional[str] = ...) -> None: ...

class Act(_message.Message):
    __slots__ = ("by", "what", "at_us")
    BY_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    AT_US_FIELD_NUMBER: _ClassVar[int]
    by: str
    what: str
    at_us: int
    def __init__(self, by: _Optional[str] = ..., what: _Optional[str] = ..., at_us: _Optional[int] = ...) -> None: ...

class QueryChange(_message.Message):
    __slots__ = ("name", "text", "by", "from_us")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    FROM_US_FIELD_NUMBER: _ClassVar[int]
    name: str
    text: str
    by: str
    from_us: int
    def __init__(self, name: _Optional[str] = ..., text: _Optional[str] = ..., by: _Optional[str] = ..., from_us: _Optional[int] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("slot", "owner", "secondary", "serial", "reason")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SECONDARY_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    slot: int
    owner: str
    secondary: str
    serial: int
    reason: str
    def __init__(self, slot: _Optional[int] = ..., owner: _Optional[str] = ..., secondary: _Optional[str] = ..., serial: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Workers(_message.Message):
    __slots__ = ("as_configured", "count", "by")
    class CountEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    AS_CONFIGURED_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    as_configured: bool
    count: _containers.ScalarMap[str, int]
    by: str
    def __init__(self, as_configured: _Optional[bool] = ..., count: _Optional[_Mapping[str, int]] = ..., by: _Optional[str] = ...) -> None: ...

class SlotMove(_message.Message):
    __slots__ = ("slot", "to", "by")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    slot: int
    to: str
    by: str
    def __init__(self, slot: _Optional[int] = ..., to: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class StandbyTarget(_message.Message):
    __slots__ = ("slot", "as_configured", "batch_size", "policy", "max_bandwidth", "max_recovery_s", "priority")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    AS_CONFIGURED_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    MAX_BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    MAX_RECOVERY_S_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    slot: int
    as_configured: bool
    batch_size: int
    policy: str
    max_bandwidth: float
    max_recovery_s: float
    priority: str
    def __init__(self, slot: _Optional[int] = ..., as_configured: _Optional[bool] = ..., batch_size: _Optional[int] = ..., policy: _Optional[str] = ..., max_bandwidth: _Optional[float] = ..., max_recovery_s: _Optional[float] = ..., priority: _Optional[str] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("serial", "slots", "slot", "table_sha256", "before", "from_us", "move")
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TABLE_SHA256_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    FROM_US_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    serial: int
    slots: int
    slot: bytes
    table_sha256: str
    before: bytes
    from_us: int
    move: str
    def __init__(self, serial: _Optional[int] = ..., slots: _Optional[int] = ..., slot: _Optional[bytes] = ..., table_sha256: _Optional[str] = ..., before: _Optional[bytes] = ..., from_us: _Optional[int] = ..., move: _Optional[str] = ...) -> None: ...

class HelperRequest(_message.Message):
    __slots__ = ("slot", "epoch", "sensor", "from_step")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SENSOR_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    slot: int
    epoch: int
    sensor: bytes
    from_step: int
    def __init__(self, slot: _Optional[int] = ..., epoch: _Optional[int] = ..., sensor: _Optional[bytes] = ..., from_step: _Optional[int] = ...) -> None: ...

class RecoveryTarget(_message.Message):
    __slots__ = ("as_configured", "eps", "delta", "helpers", "unbounded")
    AS_CONFIGURED_FIELD_NUMBER: _ClassVar[int]
    EPS_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    HELPERS_FIELD_NUMBER: _ClassVar[int]
    UNBOUNDED_FIELD_NUMBER: _ClassVar[int]
    as_configured: bool
    eps: float
    delta: float
    helpers: int
    unbounded: str
    def __init__(self, as_configured: _Optional[bool] = ..., eps: _Optional[float] = ..., delta: _Optional[float] = ..., helpers: _Optional[int] = ..., unbounded: _Optional[str] = ...) -> None: ...

class FleetTable(_message.Message):
    __slots__ = ("csv", "from_us", "by")
    CSV_FIELD_NUMBER: _ClassVar[int]
    FROM_US_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    csv: bytes
    from_us: int
    by: str
    def __init__(self, csv: _Optional[bytes] = ..., from_us: _Optional[int] = ..., by: _Optional[str] = ...) -> None: ...

class ModelTarget(_message.Message):
    __slots__ = ("as_configured", "sha256", "by", "sensors", "steps", "newest", "error", "naive")
    AS_CONFIGURED_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    SENSORS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NAIVE_FIELD_NUMBER: _ClassVar[int]
    as_configured: bool
    sha256: str
    by: str
    sensors: int
    steps: int
    newest: int
    error: float
    naive: float
    def __init__(self, as_configured: _Optional[bool] = ..., sha256: _Optional[str] = ..., by: _Optional[str] = ..., sensors: _Optional[int] = ..., steps: _Optional[int] = ..., newest: _Optional[int] = ..., error: _Optional[float] = ..., naive: _Optional[float] = ...) -> None: ...

class Late(_message.Message):
    __slots__ = ("version", "slot", "offset", "reason", "batch", "cursor", "recovered")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_FIELD_NUMBER: _ClassVar[int]
    version: int
    slot: int
    offset: int
    reason: str
    batch: TupleBatch
    cursor: int
    recovered: Recovered
    def __init__(self, version: _Optional[int] = ..., slot: _Optional[int] = ..., offset: _Optional[int] = ..., reason: _Optional[str] = ..., batch: _Optional[_Union[TupleBatch, _Mapping]] = ..., cursor: _Optional[int] = ..., recovered: _Optional[_Union[Recovered, _Mapping]] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("version", "topic", "partition", "offset", "reason", "detail", "key", "value")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    version: int
    topic: str
    partition: int
    offset: int
    reason: str
    detail: str
    key: bytes
    value: bytes
    def __init__(self, version: _Optional[int] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...
