"""One model over several processes, each with a part of every layer: tensor parallelism.

    rank 0     serves. Its engine is a `Leader`: before each forward it tells the others
               what was done to its caches since the last one, and what is fed now
    the others follow: the same calls on caches of their own, then the same forward

The weights are split at load by transformers, by the plan that the model's configuration
has. The sums inside of a forward keep the ranks in step, and give each of them all logits;
only rank 0 reads them. A rank keeps K/V of its own heads.

1.  Until they serve, all ranks run the same program (load, self-check) and are told nothing.
2.  What rank 0 refuses (a segment that does not fit, a cache without room) it refuses
    before anybody is told: nothing has changed then.
3.  What fails later may have happened on some ranks only. They cannot be brought into
    step again, so rank 0 ends its process. So it does when a rank is gone.
4.  A rank ends with rank 0: by the kernel on Linux, and anywhere because its link closes.
"""
