"""A model on disk, whichever engine reads it.

files        where it is: a folder, a GGUF file, a name
shipped      where the models are that come with Paceline
gguf         the folder that a GGUF file is converted to, once
fingerprint  whether two workers run the same weights in the same way
heads        whether it is a head for another model
bundle       its tokenizer, chat template and generation config
"""
