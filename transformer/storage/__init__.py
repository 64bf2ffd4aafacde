"""Storage of run directories: a local disk or a Google Cloud Storage bucket, chosen by the path's scheme."""
