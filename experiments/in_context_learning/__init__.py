"""In-context learning: linear functions, word translation, string edits and style from examples in the prompt."""
