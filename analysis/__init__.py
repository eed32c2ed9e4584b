"""From runs to tables, statistics and verdicts."""
