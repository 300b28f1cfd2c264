"""What clients meet: who may come in, and what is asked and answered."""
