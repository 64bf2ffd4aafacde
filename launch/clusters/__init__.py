"""Launchers of one training on many processes, each thin over an engine: gcloud, kubectl, sbatch, or this machine."""
