"""Making an n-gram file of a target.

train       the whole run
firsts      what follows each token alone
laws        mean distributions after one to four tokens
informants  what the target, a draft model or a head says of a text
fitting     what each source's word is worth
"""
