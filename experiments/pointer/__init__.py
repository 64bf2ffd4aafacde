"""Pointer networks on points in the plane."""
