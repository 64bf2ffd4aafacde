"""GPT-1, ELMo and an LSTM with attention on sets of GLUE."""
