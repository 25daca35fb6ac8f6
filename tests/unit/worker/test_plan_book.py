from itertools import count

import pytest
import structlog
import structlog.testing

from tsunagi.query.errors import QueryError
from tsunagi.runtime.columns import pack_sensors
from tsunagi.runtime.fleet_change import fleet_change
from tsunagi.runtime.fleet_table import pack_table
from tsunagi.runtime.messages import (
    VERSION,
    Assignment,
    FleetTable,
    HelperRequest,
    ModelTarget,
    Placement,
    Plan,
    QueryChange,
    RecoveryTarget,
    StandbyTarget,
)
from tsunagi.runtime.plan import MOVE
from tsunagi.runtime.sensors import SensorsError, read_sensors
from tsunagi.runtime.settings import Settings
from tsunagi.slot.config import SlotConfig
from tsunagi.slot.operators import Frame, Stateless
from tsunagi.worker.plan_book import PlanBook

MADE: list[int] = []
PLACES = count()


class Heavy(Stateless):
    """An operator that takes long to make."""

    def __init__(self, config):
        MADE.append(config.slot)

    def process(self, frame: Frame):
        return (frame,)


def plan(**body) -> tuple[Plan, int]:
    """Return a record and where it stands in the log."""
    return Plan(version=VERSION, **body), next(PLACES)


def test_operators_are_tried_once_and_not_at_every_assignment(tmp_path):
    (tmp_path / "sensors.csv").write_text("sensor,edge,group\na,e,left\nb,e,right\n", encoding="utf-8")
    table = read_sensors(tmp_path / "sensors.csv")
    settings = Settings(query={"operators": [{"use": f"{__name__}:Heavy"}]})
    book = PlanBook(settings, "gw-1", table, structlog.get_logger())
    book.on_plan(*plan(placement=Placement(serial=1, slots=2, slot=pack_sensors([0, 1]), table_sha256=table.digest(2))))
    MADE.clear()
    for serial in range(1, 6):
        for slot in (0, 1):
            assigned = Assignment(slot=slot, owner="gw-1", secondary=f"sec-{serial}", serial=serial)
            assert book.on_plan(*plan(assignment=assigned))
        wishes = {assignment.slot: wish for assignment, wish in book.wishes()}
    assert MADE == [0, 1]
    assert wishes[1].groups == ("right",)


def one_slot(tmp_path) -> PlanBook:
    """A book of gw-1 that knows where the only sensor belongs."""
    (tmp_path / "sensors.csv").write_text("sensor,edge\na,e\n", encoding="utf-8")
    table = read_sensors(tmp_path / "sensors.csv")
    book = PlanBook(Settings(), "gw-1", table, structlog.get_logger())
    book.on_plan(*plan(placement=Placement(serial=1, slots=1, slot=pack_sensors([0]), table_sha256=table.digest(1))))
    return book


def test_slots_go_by_the_table_in_force_and_keep_the_old_one_if_a_record_holds_none(tmp_path):
    book = one_slot(tmp_path)
    assert book.on_plan(*plan(assignment=Assignment(slot=0, owner="gw-1", serial=1)))
    (tmp_path / "new.csv").write_text("sensor,edge,was\nb,f,a\nc,f,\n", encoding="utf-8")
    change = fleet_change(book.table, read_sensors(tmp_path / "new.csv"))
    assert book.on_plan(*plan(table=pack_table(change.table, by="apply", from_us=1), serial=5))
    ((_, wish),) = book.wishes()
    config = wish.config
    assert (config.sensors, config.names, config.edges) == ((0,), ("b",), ("f",)), "c has no slot yet"
    assert (config.model_names, config.former, config.changeable) == (("a",), ((0, "e"),), True)
    slots = Placement(serial=2, slots=1, slot=pack_sensors([0, 0]), table_sha256=change.table.digest(2))
    assert book.on_plan(*plan(placement=slots))
    ((_, wish),) = book.wishes()
    assert wish.config.names == ("b", "c")
    assert SlotConfig.parse(wish.config.text()) == wish.config
    assert book.table_serial == 5

    with structlog.testing.capture_logs() as logs:
        assert book.on_plan(*plan(table=FleetTable(csv=b"no table"), serial=6))
    assert logs[0]["event"] == "unusable sensors table"
    assert book.table_serial == 5
    ((_, again),) = book.wishes()
    assert again.config == wish.config


@pytest.mark.parametrize(
    ("owner", "secondary", "given"),
    [("gw-1", "gw-2", False), ("gw-2", "gw-1", False), ("", "gw-2", False), ("gw-2", "", True), ("gw-2", "gw-3", True)],
)
def test_a_slot_is_given_away_when_others_alone_are_named(tmp_path, owner: str, secondary: str, given: bool):
    book = one_slot(tmp_path)
    assert book.given_away(0) is None
    assert book.on_plan(*plan(assignment=Assignment(slot=0, owner="gw-1", serial=1)))
    assigned = Assignment(slot=0, owner=owner, secondary=secondary, serial=2)
    assert book.on_plan(*plan(assignment=assigned))
    assert book.given_away(0) == (assigned if given else None)
    assert book.on_plan(*plan(assignment=Assignment(slot=1, owner="gw-2", serial=1)))
    assert book.given_away(1) is None  # it never was this node's


def test_a_slot_moves_only_where_the_plan_says_so(tmp_path):
    book = one_slot(tmp_path)
    moves = []
    for serial, reason in enumerate(("protect", MOVE, "prepare"), 1):
        book.on_plan(*plan(assignment=Assignment(slot=0, owner="gw-1", secondary="b", serial=serial, reason=reason)))
        moves.append(wish_of(book).move)
    assert moves == [False, True, False]


def test_a_placement_of_another_sensors_table_is_refused(tmp_path):
    book = one_slot(tmp_path)
    known = book.placement
    with pytest.raises(SensorsError):
        book.on_plan(*plan(placement=Placement(serial=2, slots=1, slot=pack_sensors([0]), table_sha256="another")))
    assert book.placement == known


def test_what_is_asked_of_a_secondary_is_its_slots_target(tmp_path):
    book = one_slot(tmp_path)
    assert book.target(0) is None
    assert book.on_plan(*plan(target=StandbyTarget(slot=0, batch_size=7)))
    target = book.target(0)
    assert target is not None
    assert target.batch_size == 7
    assert book.target(1) is None


def wish_of(book: PlanBook):
    return next(wish for _, wish in book.wishes())


def test_what_is_asked_of_the_recovery_and_of_helpers_is_in_the_wish(tmp_path):
    (tmp_path / "sensors.csv").write_text("sensor,edge\na,e\nb,e\n", encoding="utf-8")
    table = read_sensors(tmp_path / "sensors.csv")
    book = PlanBook(Settings(recovery={"eps": 0.5}), "gw-1", table, structlog.get_logger())
    book.on_plan(*plan(placement=Placement(serial=1, slots=1, slot=pack_sensors([0, 0]), table_sha256=table.digest(2))))
    book.on_plan(*plan(assignment=Assignment(slot=0, owner="gw-1", serial=1)))
    first = wish_of(book)
    assert (first.config.eps, first.config.delta, first.helpers, first.requested) == (0.5, 0.9, 100, ())
    assert book.on_plan(*plan(recovery=RecoveryTarget(delta=0.95, helpers=7, unbounded="withhold")))
    asked = wish_of(book)
    assert (asked.config.eps, asked.config.delta, asked.helpers) == (0.5, 0.95, 7)
    assert asked.config.unbounded == "withhold"
    assert asked.config.same_but_bounds(first.config)
    for impossible in ({"delta": 1.5}, {"eps": -1.0}, {"unbounded": "maybe"}):
        book.on_plan(*plan(recovery=RecoveryTarget(**impossible)))
        assert wish_of(book).config == first.config
    book.on_plan(*plan(recovery=RecoveryTarget(as_configured=True)))
    assert wish_of(book).config == first.config
    assert book.on_plan(*plan(helpers=HelperRequest(slot=0, epoch=4, sensor=pack_sensors([3, 9]))))
    assert not book.on_plan(*plan(helpers=HelperRequest(slot=0, epoch=3)))
    assert wish_of(book).requested == (3, 9)


def test_the_model_is_what_plan_names_if_the_store_has_it(tmp_path):
    store = tmp_path / "models"
    (tmp_path / "sensors.csv").write_text("sensor,edge\na,e\n", encoding="utf-8")
    table = read_sensors(tmp_path / "sensors.csv")
    said = structlog.testing.LogCapture()
    logger = structlog.wrap_logger(structlog.PrintLogger(), processors=[said])
    book = PlanBook(Settings(recovery={"store": store}), "gw-1", table, logger, model_sha256="cd" * 32)
    book.on_plan(*plan(placement=Placement(serial=1, slots=1, slot=pack_sensors([0]), table_sha256=table.digest(1))))
    book.on_plan(*plan(assignment=Assignment(slot=0, owner="gw-1", serial=1)))
    assert wish_of(book).model_sha256 == "cd" * 32
    assert book.on_plan(*plan(model=ModelTarget(sha256="ab" * 32, by="learner")))
    assert wish_of(book).model_sha256 == "cd" * 32
    assert said.entries[-1]["event"] == "a model is not in the store"
    for folder in (store, store / "refits"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{'ab' * 32}.model").touch()
        assert wish_of(book).model_sha256 == "ab" * 32
        (folder / f"{'ab' * 32}.model").unlink()
    assert book.on_plan(*plan(model=ModelTarget(as_configured=True)))
    assert wish_of(book).model_sha256 == "cd" * 32


def asked(tmp_path, **query) -> tuple[PlanBook, structlog.testing.LogCapture]:
    """A book of gw-1 that owns the only slot, and what it logs."""
    (tmp_path / "sensors.csv").write_text("sensor,edge\na,e\n", encoding="utf-8")
    table = read_sensors(tmp_path / "sensors.csv")
    said = structlog.testing.LogCapture()
    logger = structlog.wrap_logger(structlog.PrintLogger(), processors=[said])
    book = PlanBook(Settings(query=query), "gw-1", table, logger)
    book.on_plan(*plan(placement=Placement(serial=1, slots=1, slot=pack_sensors([0]), table_sha256=table.digest(1))))
    book.on_plan(*plan(assignment=Assignment(slot=0, owner="gw-1", serial=1)))
    return book, said


def config_of(book: PlanBook) -> SlotConfig:
    ((_, wish),) = book.wishes()
    return wish.config


def statements(book: PlanBook) -> tuple[str, ...]:
    return config_of(book).statements


def test_statements_are_those_of_the_files_at_the_start_and_of_the_plan(tmp_path):
    file = tmp_path / "q.sql"
    stream = "CREATE STREAM s (k TEXT KEY, x DOUBLE)"
    file.write_text(f"CREATE QUERY high AS SELECT k, x FROM s WHERE x > 1; {stream}", encoding="utf-8")
    book, said = asked(tmp_path, mode="tuples", files=[file])
    high = "CREATE QUERY high AS SELECT k, x FROM s WHERE x > 1"
    assert statements(book) == (stream, high)
    file.write_text("CREATE QUERY other AS", encoding="utf-8")
    low = "CREATE QUERY low AS SELECT k, x FROM s WHERE x < 1"
    assert book.on_plan(*plan(query=QueryChange(name="low", text=low)))
    assert statements(book) == (stream, high, low)
    refused = {
        "y": ("CREATE QUERY y AS SELECT z FROM s", "column z is unknown"),
        "t": ("CREATE STREAM t (k TEXT KEY)", "a stream stands in a file"),
        "n": ("CREATE QUERY n AS SELECT COUNT(*) AS n FROM s", "expected k in GROUP BY"),
        "m": ("nothing", "expected CREATE STREAM"),
        "high": ("CREATE QUERY high AS SELECT k FROM s", None),  # the file's counts
    }
    for name, (text, why) in refused.items():
        book.on_plan(*plan(query=QueryChange(name=name, text=text)))
        assert statements(book) == (stream, high, low), name
        assert why is None or why in said.entries[-1]["reason"]
    book.on_plan(*plan(query=QueryChange(name="low", text="")))
    assert statements(book) == (stream, high)


def test_without_files_the_plan_alone_may_ask(tmp_path):
    book, _ = asked(tmp_path, mode="tuples")
    assert statements(book) == ()
    text = "CREATE QUERY q AS SELECT sensor, value FROM readings"
    book.on_plan(*plan(query=QueryChange(name="q", text=text)))
    assert statements(book) == (text,)


def test_queries_are_filled_as_the_plan_says_unless_there_are_operators(tmp_path):
    text = "CREATE QUERY q AS SELECT sensor, value FROM readings"
    for operators, fills in (([], (("q", 5),)), ([{"use": "select"}], ())):
        book, _ = asked(tmp_path, mode="tuples", operators=operators)
        for query in (QueryChange(name="p", text=text.replace("q", "p")), QueryChange(name="q", text=text, from_us=5)):
            book.on_plan(*plan(query=query))
        assert config_of(book).fills == fills
        assert SlotConfig.parse(config_of(book).text()) == config_of(book)
        book.on_plan(*plan(query=QueryChange(name="q", text=text)))
        assert config_of(book).fills == ()


def test_with_steps_the_spark_job_is_asked(tmp_path):
    book, said = asked(tmp_path)
    book.on_plan(*plan(query=QueryChange(name="q", text="CREATE QUERY q AS SELECT none FROM readings")))
    assert (statements(book), said.entries) == ((), [])


def test_a_file_that_cannot_be_understood_ends_the_worker(tmp_path):
    file = tmp_path / "q.sql"
    file.write_text("CREATE QUERY q AS SELECT valu FROM readings", encoding="utf-8")
    with pytest.raises(QueryError, match=r"q.sql, line 1, column 26: column valu is unknown.*did you mean value"):
        asked(tmp_path, mode="tuples", files=[file])
