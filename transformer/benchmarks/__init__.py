"""What is measured side by side: the loop beside its bare step, and what maps add."""
