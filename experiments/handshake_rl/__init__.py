"""A robot learns by Q-learning when to shake hands, with attention over its images (MDARQN, Qureshi et al. 2017)."""
