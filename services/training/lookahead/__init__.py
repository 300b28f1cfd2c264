"""Training look-ahead embeddings (PaSS) for a frozen target, on texts that it wrote.

Uses the distillation's texts, trainer and checks; nothing there knows of this.
"""
