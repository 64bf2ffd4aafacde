"""Load any trained model and look at its attention: `transformer.load` reads a run or a Hugging Face model folder."""
