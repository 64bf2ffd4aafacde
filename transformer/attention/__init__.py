"""Attention as pure functions of arrays: jax alone, no modules, no configs."""
