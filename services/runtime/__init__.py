"""How a process runs: serving, settings, logs, telemetry, and its children."""
