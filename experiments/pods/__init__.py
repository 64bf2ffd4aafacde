"""Published decoders on the pods that they are meant for; each can be compiled for its pod without having one."""
