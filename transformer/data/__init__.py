"""Data: data sets, tokenizers, and batches as a pure function of seed and step."""
