import structlog

from services.gateway.operators import Frame, Stateless
from services.gateway.plan_book import PlanBook
from services.runtime.columns import pack_sensors
from services.runtime.messages import VERSION, Assignment, Placement, Plan
from services.runtime.sensors import read_sensors
from services.runtime.settings import Settings

MADE: list[int] = []


class Heavy(Stateless):
    """An operator that takes long to make."""

    def __init__(self, config):
        MADE.append(config.slot)

    def process(self, frame: Frame):
        return (frame,)


def plan(**body) -> Plan:
    return Plan(version=VERSION, **body)


def test_operators_are_tried_once_and_not_at_every_assignment(tmp_path):
    (tmp_path / "sensors.csv").write_text("sensor,edge,group\na,e,left\nb,e,right\n", encoding="utf-8")
    table = read_sensors(tmp_path / "sensors.csv")
    settings = Settings(query={"operators": [{"use": f"{__name__}:Heavy"}]})
    book = PlanBook(settings, "gw-1", table, structlog.get_logger())
    book.take_in(plan(placement=Placement(serial=1, slots=2, slot=pack_sensors([0, 1]), table_sha256=table.digest(2))))
    MADE.clear()
    for serial in range(1, 6):
        for slot in (0, 1):
            assigned = Assignment(slot=slot, owner="gw-1", secondary=f"sec-{serial}", serial=serial)
            assert book.take_in(plan(assignment=assigned))
        wishes = {assignment.slot: wish for assignment, wish in book.wishes()}
    assert MADE == [0, 1]
    assert wishes[1].groups == ("right",)
