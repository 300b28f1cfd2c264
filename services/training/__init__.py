"""What is learned of a target: n-gram files, heads, look-ahead embeddings, skip masks.

Each kind is `paceline train KIND` over one pipeline; a folder has what is a kind's own.

options    what is asked of each kind
checks     what is refused before any work: the job
writing    the target writes texts, with its distribution at every token; texts, series: kept
material   texts to learn from, and those held out
trainer    steps of AdamW with checkpoints and a curve; learning: what is minimised and measured
card       what is learned, from its untrained start to how well it does as stored; card and curve
"""
