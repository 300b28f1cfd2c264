"""What the scalers' expressions say of a load that comes and goes.

    manifests     the scalers, as k8s/components/keda has them
    phases        how many sessions there are, over time
    record        a real cluster and a real Prometheus; the scalers' own expressions over time
    recording     the file that comes of it, and that file as a table

`python -m research.scaling --help`
"""
