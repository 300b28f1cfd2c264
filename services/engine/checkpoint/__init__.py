"""A model on disk, whichever engine reads it.

files          where it is: a folder, a GGUF file, a name
shipped        where the models are that come with Paceline
stored         matrices that stay in their file until they are packed
folder_model   what transformers makes of a folder, with such matrices
gguf_model     the same of a GGUF file: model, configuration, tokenizer
gguf_file      what is where in a GGUF file
gguf_parts     the same of one in parts
gguf_counts    whether its settings count what its tensors have
gguf_rope      how it stretches positions
gguf_splits    how words are cut, by the name that it gives
gguf_tokenizer its tokenizer
gguf           the folder that one is converted to, for who needs a folder
fingerprint    whether two workers run the same weights in the same way
heads          whether it is a head for another model
bundle         its tokenizer, chat template and generation config
"""
