"""Tokenizers: trained here, and as models are published with them."""
