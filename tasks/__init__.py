"""The task format, the suites that ship, adapters to public benchmarks, graders."""
