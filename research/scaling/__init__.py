"""Autoscaling shown on recorded metrics: what each tier's scaler would have done, and when.

    manifests     the scalers, as k8s/components/keda has them
    autoscaler    how a horizontal pod autoscaler decides: pure
    scaler        KEDA around it: from zero, to zero, and blind: pure
    crowd         sessions, more and fewer over time
    record        a real cluster and a real Prometheus; the scalers' own expressions over time
    recording     the file between the two
    replay        what scalers make of a recording, as tables

`python -m research.scaling --help`
"""
