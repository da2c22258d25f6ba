"""Real inference engines for tests, on machines without a GPU."""
