"""`tsunagi chaos`: disturbs a running system, and judges its results by a reader of its own."""
