"""What one process of a benchmark does: each module is run with its settings as JSON, and prints what it measured."""
