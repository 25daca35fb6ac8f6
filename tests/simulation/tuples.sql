-- What slots are asked in the schedules without lock-step, beside their operators.
CREATE QUERY recent AS SELECT sensor, COUNT(*) AS n, SUM(value) AS total FROM readings [ROWS 5] GROUP BY sensor;
CREATE QUERY ever AS SELECT sensor, COUNT(*) AS n, MAX(value) AS top FROM readings [RANGE UNBOUNDED] GROUP BY sensor;
CREATE QUERY turns AS ISTREAM (SELECT sensor, value > 0 AS high FROM readings [RANGE 2 SECONDS]);
