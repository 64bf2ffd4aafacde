"""The road to the Transformer: recurrent encoder-decoders with and without attention."""
