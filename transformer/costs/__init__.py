"""Costs by formula: parameters, floating-point operations, bytes."""
