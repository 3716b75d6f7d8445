"""The paper's experiments: suites, a runner that can be interrupted, and the pages made from the results."""
