"""`tsunagi chaos`: disturbs a running system, and reports what the judge found in its results."""
