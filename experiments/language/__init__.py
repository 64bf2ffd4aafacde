"""Language modelling: decoders that continue a text, encoders that fill in what is hidden."""
