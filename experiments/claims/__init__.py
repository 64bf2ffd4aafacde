"""Claims of five lectures on attention: each with the figures that decide it and the rule by which they do."""
