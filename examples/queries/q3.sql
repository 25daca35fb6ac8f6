-- P-SORT, figure 1: the share of readings above the threshold. The paper's ISTREAM gives a row when the share changes.
-- This one gives a row for every reading, as the job's own q3 does, in the order of time within each group.
CREATE QUERY q3 AS
SELECT r.sensor, r.group, r.value, q1.n AS q1, COALESCE(q2.n, 0) AS q2, COALESCE(q2.n, 0) / q1.n AS q3
FROM readings r JOIN q1 ON q1.sensor = r.sensor LEFT JOIN q2 ON q2.sensor = r.sensor
ORDER WITHIN group;
