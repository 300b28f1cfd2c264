"""`paceline plan`: what speculation will bring, before anything is bought or started.

`options` are its flags, `measured` reads them from a bench's JSON, `capacity` asks the
simulator, `report` prints.
"""
