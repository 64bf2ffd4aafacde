"""Model families: one file each, its config dataclass beside it."""
