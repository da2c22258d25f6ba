"""One file per verb of the command line. Each is imported only when its verb is called, so that --help stays fast."""
