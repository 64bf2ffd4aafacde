"""A robot that learns when to shake hands, by attention over what it sees (MDARQN)."""
