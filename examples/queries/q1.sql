-- P-SORT, figure 1: how many readings each sensor had in the last minute.
CREATE VIEW q1 AS
SELECT sensor, COUNT(*) AS n FROM readings [RANGE 1 MINUTE] GROUP BY sensor;
