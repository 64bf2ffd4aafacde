"""Model families, one per file, each with its config dataclass."""
