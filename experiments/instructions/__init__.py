"""Instructions that are followed in mazes."""
