"""One pilot run, from configuration to tracked result."""
