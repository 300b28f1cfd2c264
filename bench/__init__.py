"""What measures.

`paceline bench` measures plain decoding and speculation side by side, on the same prompts;
`paceline plan` counts nodes and prices from that. One part by itself, `python -m bench.NAME`:

    device              a device: the same rows as on a CPU, and steps beside its memory's floor
    orchestrator_cost   what an orchestrator costs a round and a token
    loop_floor          the least loop there can be, which `--synthetic` runs beside the services
    acceptance          what each verification rule accepts, exactly
    agreement           how often a draft model, or a head, agrees with its target
    near_ties           how much rounding changes margins
    same_texts          how many texts are those of plain decoding
"""
