-- P-SORT, figure 1: how many of them were above the sensor's threshold.
CREATE VIEW q2 AS
SELECT sensor, COUNT(*) AS n FROM readings [RANGE 1 MINUTE] WHERE value > threshold GROUP BY sensor;
