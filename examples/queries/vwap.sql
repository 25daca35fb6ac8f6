-- Volume-weighted average price (VWAP) of each symbol over its last 100 trades, at each trade.
-- ElasticStream's application (Ishii and Suzumura, 2011): split by symbol, since a symbol's trades are in one slot.
CREATE STREAM trades (symbol TEXT KEY, price DOUBLE, volume BIGINT);

CREATE QUERY vwap AS
  SELECT symbol, SUM(price * volume) / SUM(volume) AS vwap, COUNT(*) AS trades
  FROM trades [ROWS 100]
  GROUP BY symbol;
