"""Language models: GPT, LSTMN, Transformer-XL, XLNet, mixtures of experts, and how loss scales with size."""
