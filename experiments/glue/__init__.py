"""GPT-1, ELMo and an LSTM with attention on data sets of GLUE."""
