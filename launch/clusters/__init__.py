"""Launchers of distributed training, each a thin layer over an engine: gcloud, kubectl, sbatch, or this machine."""
