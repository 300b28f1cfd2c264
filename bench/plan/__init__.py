"""`paceline plan`: foretells what speculation will gain, before anything is bought or started.

`options` are its flags, `measured` reads them from a bench's JSON, `capacity` asks the
simulator, `report` prints.
"""
