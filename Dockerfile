# The image of a run on GKE or another cluster (docs/guides/distributed_training.md):
#   docker build --tag=IMAGE .                             for TPUs
#   docker build --tag=IMAGE --build-arg=ACCELERATOR=gpu . for GPUs
FROM python:3.13-slim

ARG ACCELERATOR=tpu
WORKDIR /headwise
# Before the code, so that a change of the code keeps this layer.
COPY requirements/${ACCELERATOR}.txt requirements/
RUN python -m pip install --disable-pip-version-check --no-input --no-cache-dir --require-hashes \
    --requirement=requirements/${ACCELERATOR}.txt
COPY . .
# The user below cannot write the compiled files.
RUN python -m compileall -q launch transformer experiments

# The commit that environment.json of a run names: --build-arg=COMMIT=$(git rev-parse HEAD)
ARG COMMIT=
# Caches go to the home, which any user can write.
ENV HEADWISE_COMMIT=${COMMIT} PYTHONPATH=/headwise HOME=/tmp
USER 1000:1000
CMD ["python", "-m", "launch.train", "--help"]
