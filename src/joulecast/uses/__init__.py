"""Applications of estimates: plan, search and the experiments of the paper."""
