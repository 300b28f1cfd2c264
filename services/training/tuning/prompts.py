"""What a target is asked where no prompts are given: several kinds of text."""

PROMPTS = (
    "Explain to a ten-year-old why the sky is blue.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Summarize the main causes of the French Revolution in five sentences.",
    "Write a Python function that returns the n-th Fibonacci number, and explain it.",
    "Give me a recipe for a vegetable soup, with quantities and steps.",
    "What are the advantages and disadvantages of working from home?",
    "Translate into French, then explain the grammar: The train leaves at noon tomorrow.",
    "A farmer has 17 sheep and buys three times as many. How many has he now? Think aloud.",
)
