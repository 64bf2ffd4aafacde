"""Questions and what is answered to them."""
