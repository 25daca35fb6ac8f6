-- Change scores by singular spectrum transformation (SST; Ide and Inoue, SDM 2005) of each sensor, at each reading.
-- ElasticStream's application (Ishii and Suzumura, 2011): each sensor's score is a task of its own.
CREATE AGGREGATE sst AS 'examples.sst:change';

CREATE QUERY changes AS
  SELECT sensor, SST(value) AS score
  FROM readings [ROWS 59]
  GROUP BY sensor
  HAVING SST(value) IS NOT NULL;
