import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.estimation import estimate
from tsunagi.recovery.filter import Recovery
from tsunagi.recovery.fit import fit_history, read_history, summary, windows
from tsunagi.runtime.columns import Floats
from tsunagi.runtime.messages import EXACT
from tsunagi.runtime.sensors import Sensor, SensorTable, place, read_sensors
from tsunagi.runtime.settings import StepsSettings

DATA = Path(__file__).parents[3] / "data"
NAN = math.nan


def aggregate_plainly(values: Floats, steps: StepsSettings, max_age_rows: Floats) -> Floats:
    """Each window on its own, reading by reading."""
    how: dict[str, Callable[[list[float]], float]] = {
        "mean": lambda cells: sum(cells) / len(cells),
        "sum": sum,
        "min": min,
        "max": max,
        "last": lambda cells: cells[-1],
    }
    result = []
    for end in range(steps.window, len(values) + 1, steps.slide):
        row = []
        for sensor in range(values.shape[1]):
            cells = [(at, v) for at, v in enumerate(values[:end, sensor]) if not math.isnan(v)]
            inside = [v for at, v in cells if at >= end - steps.window]
            if inside:
                row.append(how[steps.aggregate](inside))
            elif cells and end - 1 - cells[-1][0] < max_age_rows[sensor]:
                row.append(cells[-1][1])
            else:
                row.append(NAN)
        result.append(row)
    return np.array(result)


@pytest.mark.parametrize("aggregate", ["mean", "sum", "min", "max", "last"])
@pytest.mark.parametrize(("window", "slide"), [(10, 2), (3, 3), (4, 1), (1, 1)])
def test_windows_are_those_of_an_edge(aggregate, window, slide):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(57, 3))
    values[rng.random(values.shape) < 0.6] = NAN
    values[20:40, 1:] = NAN
    steps = StepsSettings(window=window, slide=slide, aggregate=aggregate)
    ages = np.array([NAN, NAN, 15.0])
    np.testing.assert_allclose(windows(values, steps, ages), aggregate_plainly(values, steps, ages), rtol=1e-12)


def test_windows_need_whole_windows():
    assert windows(np.zeros((9, 2)), StepsSettings()).shape == (0, 2)
    assert windows(np.zeros((10, 2)), StepsSettings()).shape == (1, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("time\n2020-01-01T00:00:00Z\n", "line 1: found only a column of times"),
        ("a,b\n", "no readings below the header"),
        ("a,b,a\n1,2,3\n", "line 1: sensor 'a' stands in columns 1 and 3"),
        ("a,,b\n1,2,3\n", "line 1, column 2: found no name"),
        ("a,b\n1,2\n1\n", "line 3: found 1 fields, expected 2"),
        ("a,b\n1,2\n\n1,2,3\n", "line 4: found 3 fields, expected 2"),
        ("a,b\n1,x7\n", "line 2, column 'b': found 'x7', expected a number or nothing"),
        (
            "time,a\n2020-01-01T00:00:00,1\n",
            "line 2, column 'time': found '2020-01-01T00:00:00', a time without",
        ),
        ("time,a\nyesterday,1\n", "line 2, column 'time': found 'yesterday', expected ISO 8601"),
        ("time,a\n1700000000000,1\n", "line 2, column 'time': found '1700000000000': looks like milliseconds"),
        ("a,b\n1_0,2\n", "line 2, column 'a': found '1_0', expected a number"),
        ("time,a\n10,1\n20,1\n20,1\n", "line 4: time '20' is not later"),
    ],
)
def test_bad_readings_are_named(text, message, tmp_path):
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(ModelError, match=r"bad\.csv") as caught:
        read_history(file)
    assert message in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ModelError, match=r"none\.csv: no such file"):
        read_history(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes(b"a\n\xe9\n")
    with pytest.raises(ModelError, match=r"latin\.csv, line 2: found byte 0xe9 at 1, expected UTF-8"):
        read_history(tmp_path / "latin.csv")


def test_empty_cells_and_both_kinds_of_time(tmp_path):
    file = tmp_path / "good.csv"
    file.write_text("\ufefftime,a,b\n1577836800.5,1, \n2020-01-01T00:01:00+00:00,,2\n", encoding="utf-8")
    history = read_history(file)
    assert history.names == ("a", "b")
    np.testing.assert_array_equal(history.values, [[1, NAN], [NAN, 2]])
    assert history.times_us is not None
    assert history.times_us.tolist() == [1577836800_500_000, 1577836860_000_000]


@pytest.fixture
def small(tmp_path):
    rng = np.random.default_rng(0)
    common = np.cumsum(rng.normal(size=(120, 1)), axis=0)
    values = 20 + common + 0.3 * rng.normal(size=(120, 3))
    file = tmp_path / "small.csv"
    file.write_text("a,b,c\n" + "".join(",".join(f"{cell:.3f}" for cell in row) + "\n" for row in values))
    table = SensorTable(tuple(Sensor(i, name, f"e{i % 2}", unit="K") for i, name in enumerate("abcd")))
    return file, table


@pytest.mark.slow
def test_fit_says_what_it_used(small):
    file, table = small
    model, _ = fit_history(file, table, StepsSettings(), 0.5)
    assert model.names == ("a", "b", "c")
    assert model.about["rows"] == [0, 60]
    assert model.about["units"] == ["K"] * 3
    assert model.about["steps"] == 26
    again, _ = fit_history(file, table, StepsSettings(), (0, 60))
    assert again.identity == model.identity


def test_fit_leaves_out_implausible_readings(small):
    file, table = small
    tight = SensorTable(tuple(replace(sensor, maximum=20.0) for sensor in table.sensors))
    model, report = fit_history(file, tight, StepsSettings(), 1.0)
    assert model.about["outside_range"] > 0
    assert report.sensors + len(report.left_out) == 3


def test_a_renamed_sensor_is_found_by_both_names_and_has_its_first_one_in_the_model(small):
    file, table = small
    renamed = SensorTable((replace(table.sensors[0], name="alpha", was="a"), *table.sensors[1:]))
    model, _ = fit_history(file, renamed, StepsSettings())
    file.write_text(file.read_text().replace("a,b,c", "alpha,b,c"))
    again, _ = fit_history(file, renamed, StepsSettings())
    assert again.names == model.names == ("a", "b", "c")
    assert again.identity == model.identity
    file.write_text(file.read_text().replace("alpha,b,c", "alpha,b,a"))
    with pytest.raises(ModelError, match=r"small\.csv, line 1: found 'alpha' and 'a', expected one of them"):
        fit_history(file, renamed, StepsSettings())


def test_fit_names_what_does_not_fit(small):
    file, table = small
    few = SensorTable(table.sensors[:2])
    with pytest.raises(ModelError, match=r"small\.csv, line 1: sensor 'c' is not in the sensors table"):
        fit_history(file, few, StepsSettings())
    for rows in (0.0, 1.5, (0, 121), (5, 5)):
        with pytest.raises(ModelError, match=r"small\.csv: rows: found"):
            fit_history(file, table, StepsSettings(), rows)
    with pytest.raises(ModelError, match=r"small\.csv, rows 0 to 12: history: found 2 steps"):
        fit_history(file, table, StepsSettings(), 0.1)


@pytest.mark.slow
def test_shipped_readings_are_recovered_with_honest_bounds(tmp_path):
    """Fitted on the first 40 % of the rows; then each edge is down for 30 steps at a time in the rest."""
    table = read_sensors(DATA / "guangzhou-sensors.csv")
    history = read_history(DATA / "guangzhou.csv")
    chosen = np.flatnonzero(place(table, 6) == 0)  # one of six slots: the whole takes seconds
    part = SensorTable(tuple(table.sensors[i] for i in chosen))
    file = tmp_path / "part.csv"
    lines = [",".join(part.sensors[k].name for k in range(len(part)))]
    lines += [",".join(str(cell) for cell in row) for row in history.values[:, chosen]]
    file.write_text("\n".join(lines))
    steps = StepsSettings()
    model, _ = fit_history(file, part, steps, 0.4)
    rest = windows(history.values[200:, chosen], steps)
    sd = rest.std(axis=0)
    edges = np.array([sensor.edge for sensor in part.sensors])
    errors, lasts, means, inside = [], [], [], []
    for edge in part.edges:
        recovery, lost, last = Recovery(model), edges == edge, rest[0]
        for step, truth in enumerate(rest):
            row = truth.copy()
            if step % 31:
                row[lost] = NAN
            else:
                last = truth
            estimate = recovery.step(row)
            hidden = estimate.quality != EXACT
            errors.append(((estimate.mean - truth) / sd)[hidden])
            lasts.append(((last - truth) / sd)[hidden])
            means.append(((model.mean - truth) / sd)[hidden])
            inside.append((np.abs(estimate.mean - truth) <= estimate.bound)[hidden])
    nrmse, last_nrmse, mean_nrmse = (np.sqrt(np.mean(np.concatenate(e) ** 2)) for e in (errors, lasts, means))
    assert nrmse < 0.6
    assert last_nrmse > 1.2
    assert mean_nrmse > 0.9
    assert 0.85 <= np.mean(np.concatenate(inside)) <= 0.96


def live(tmp_path: Path, rows: int = 900, interval_s: float = 450.0) -> tuple[Path, SensorTable]:
    """A history in real time, with a day's wave that is highest at noon."""
    rng = np.random.default_rng(11)
    seconds = 1_704_067_200 + 137 * interval_s + interval_s * np.arange(rows)  # from 2024-01-01T17:07:30Z
    day = -np.cos(2 * np.pi * seconds / 86_400)
    values = 20 + 4 * day[:, None] + rng.normal(size=(rows, 4))
    file = tmp_path / "live.csv"
    lines = ["time,a,b,c,d"]
    lines += [",".join([repr(at), *map(repr, row)]) for at, row in zip(seconds.tolist(), values.tolist(), strict=True)]
    file.write_text("\n".join(lines))
    return file, SensorTable(tuple(Sensor(i, name, f"e{i % 2}") for i, name in enumerate("abcd")))


@pytest.mark.slow
@pytest.mark.parametrize("period", ["24h", "auto", "96", "86400 s"])
def test_a_profile_is_in_phase_with_event_time(tmp_path, period):
    file, table = live(tmp_path, rows=1800 if period == "auto" else 900)
    steps = StepsSettings(interval_s=450.0, window=2, slide=2)
    model, report = fit_history(file, table, steps, period=period)
    assert report.profile[0] == 96
    noon = 1_704_110_400_000_000 // steps.slide_us  # 2024-01-01T12:00Z: before the history began
    assert model.mean_at(noon)[0] - model.mean_at(noon + 48)[0] == pytest.approx(8, abs=0.7)
    assert abs(model.mean_at(noon + 24)[0] - model.mean_at(noon - 24)[0]) < 1
    assert model.about["numbered"]
    assert model.about["period"][0] == "2024-01-01T17:07:30+00:00"


@pytest.mark.parametrize(
    ("period", "message"),
    [
        ("a week", "period: found 'a week', expected none, auto, steps such as 144, or a duration"),
        ("1000s", "period: found '1000s', 1.11111 steps of 900 s, expected a whole number of them"),
        ("1", "history: period: found 1, expected a number of steps above 1"),
    ],
)
def test_periods_that_are_none(tmp_path, period, message):
    file, table = live(tmp_path, rows=60)
    with pytest.raises(ModelError) as caught:
        fit_history(file, table, StepsSettings(interval_s=450.0, window=2, slide=2), period=period)
    assert message in str(caught.value)


@pytest.mark.slow
def test_no_profile_where_steps_have_no_numbers(tmp_path, small):
    file, table = small
    with pytest.raises(
        ModelError, match="period: found '24h', but steps have no numbers: the history has no column time"
    ):
        fit_history(file, table, StepsSettings(), period="24h")
    assert not fit_history(file, table, StepsSettings(), period="auto")[1].profile
    file, table = live(tmp_path)
    with pytest.raises(
        ModelError, match=r"the history's rows are 450 s apart, with \[steps\] interval_s = 1; expected none"
    ):
        fit_history(file, table, StepsSettings(), period="24h")
    model, report = fit_history(file, table, StepsSettings(), period="auto")
    assert (model.about["numbered"], model.about["speed"], report.profile) == (False, 450.0, ())


@pytest.mark.slow
def test_what_is_odd_is_said_in_lines():
    rng = np.random.default_rng(12)
    history = 20 + np.cumsum(rng.normal(size=(150, 1)), axis=0) + rng.normal(size=(150, 9))
    history[:, 1] = 7.0
    history[:, 2] = np.nan
    history[:, 4] = history[:, 3]
    model, report = estimate(history, [f"s{i}" for i in range(9)])
    model = replace(model, about={**model.about, "numbered": False, "speed": 600.0})
    singular = replace(report, condition=np.inf, nugget=1e-9)
    text = "\n".join(summary(model, singular, StepsSettings()))
    assert "8 sensors, 150 steps" in text
    assert "left out: s2: too few readings" in text
    assert "constant: s1: never changed" in text
    assert "duplicated: s3 = s4: always the same reading" in text
    assert "near singular: condition number inf; the filter adds a nugget of 1e-09 to the variances" in text
    assert "rows are 600 s apart, with [steps] interval_s = 1: taken as rows a nominal interval apart" in text
    plain = summary(replace(model, about={}), replace(report, condition=1e3, nugget=0.0), StepsSettings())
    assert not any("singular" in line or "note" in line for line in plain)
    assert "covariance form" in "\n".join(summary(model, replace(report, condition=1e8, nugget=0.0), StepsSettings()))


@pytest.mark.slow
def test_readings_past_all_measure_are_left_out(tmp_path, small):
    file, table = small
    lines = file.read_text().splitlines()
    lines[5] = "1e300,inf,-1e200"
    file.write_text("\n".join(lines))
    model, _ = fit_history(file, table, StepsSettings())
    assert model.about["outside_range"] == 3
