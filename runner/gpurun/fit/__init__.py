"""Whether a model fits: its sizes, the engines' memory budgets, the verdict. Pure; the knowledge is data/fit/*.yml."""
