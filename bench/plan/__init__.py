"""`paceline plan`: foretells what speculation will gain, before anything is bought or started.

`options` are its flags, `measured` reads them from a bench's JSON, `capacity` asks the simulator.
With prices `cells` asks it what a verifier does with so many sessions, `fleets` what many do under
open traffic, `prices` finds the fewest nodes, `trial` has the simulator try them, `money` chooses
between drafters and plain decoding, and `report` prints.
"""
