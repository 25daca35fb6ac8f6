"""`tsunagi chaos`: disturbs a running system, and reports what `tsunagi.audit` finds in its results."""
