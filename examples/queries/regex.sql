-- Messages of 1 KB in which a regular expression is found.
-- ElasticStream's application (Ishii and Suzumura, 2011): split in any way, since each message is judged by itself.
CREATE STREAM messages (feed TEXT KEY, body TEXT);

CREATE QUERY quakes AS
  SELECT feed, REGEXP_EXTRACT(body, 'quake (now|again)') AS found, LENGTH(body) AS length
  FROM messages
  WHERE body REGEXP 'quake (now|again)';
