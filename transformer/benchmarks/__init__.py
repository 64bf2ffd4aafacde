"""What is measured side by side: the loop beside its bare step, what maps add, and the backends of attention."""
