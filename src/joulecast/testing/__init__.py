"""For those who extend or judge Joulecast: contract suites to inherit, and helpers of theirs."""
