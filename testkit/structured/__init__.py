"""Structured output through faults: every answer must follow its response format."""
