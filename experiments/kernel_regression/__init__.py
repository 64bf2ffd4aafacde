"""Nadaraya-Watson kernel regression as attention: fixed kernels, and bandwidths learned by gradient descent."""
