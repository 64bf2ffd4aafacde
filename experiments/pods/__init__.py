"""Published decoders on the pods that they are meant for; each is compiled for its pod before anyone books it."""
