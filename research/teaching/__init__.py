"""On a GPU: a head and the laws of an n-gram file, from millions of texts' distributions.

    python -m research.teaching --out DIR --prompts prompts.jsonl --writing-s 120 --training-s 300

`paceline distill` keeps what the target said on disk, and sees each distribution a few times. A
GPU writes tens of thousands of tokens a second, so here only the texts are kept: their
distributions and states are computed again for every step of a training. For targets of Llama's
shape. What it does, each part for as many seconds as it is given:

1. The target writes (`writing`): it answers the prompts of a file, and prompts that it writes
   itself (Magpie, 2406.08464). All texts of a wave grow by a token at a time, side by side.
2. What it said after one to four tokens is averaged as `paceline learn-ngrams` does.
3. Heads of one or several widths learn the same batches (`lessons`), each beginning as the head
   that is given.

DIR gets `texts.npz` (for `--texts` of a later run), `laws.npz` and `lessons.npz` (texts held out)
for `research.teaching.ngrams`, a folder for each head and `report.json`, each as soon as it is
there. The clock decides how much is seen: two runs do not give the same bytes.
"""
