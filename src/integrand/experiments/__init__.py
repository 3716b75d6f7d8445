"""The paper's tables and figures as data: suites, a runner that can be interrupted, and what is made of the results."""
