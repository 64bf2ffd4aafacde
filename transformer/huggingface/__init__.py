"""Conversion of models from and to the files of other libraries."""
