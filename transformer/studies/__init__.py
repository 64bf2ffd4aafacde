"""Studies: many runs as one question. The sweep engine, paired statistics, the report."""
