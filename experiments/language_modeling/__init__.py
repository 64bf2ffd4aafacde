"""Language models: GPT, LSTMN, Transformer-XL, XLNet, experts, and their scaling."""
