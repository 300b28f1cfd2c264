"""What every process agrees on: types, errors, and the wire."""
