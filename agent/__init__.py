"""The agent: loop, recorder, conversation, approvals, event log, command line."""
