"""Cost models: parameters, FLOPs, memory, roofline step time, training cost."""
