"""Scripts that time the same model in other libraries."""
