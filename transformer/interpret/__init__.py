"""Any model and any sentence in one call: `transformer.load` reads a run or a Hugging Face folder, and looks."""
