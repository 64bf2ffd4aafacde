"""A small GPT fine-tuned by LoRA, by all its parameters, and from scratch."""
