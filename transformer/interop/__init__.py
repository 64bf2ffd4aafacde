"""Models of other libraries: their files in, ours out, and the other way."""
