# One image for every role: docker build -t p2prl . (docs/containers.md). For an NVIDIA card:
#   docker build -t p2prl:cuda --build-arg TORCH_INDEX=https://pypi.org/simple --build-arg EXTRAS=vllm,sensors .
FROM python:3.11.13-slim-bookworm AS build

# torch without CUDA; PyPI's own build brings CUDA, 3 GB more.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Extras of the installation, separated by commas.
ARG EXTRAS=qr

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/p2prl
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY p2prl p2prl
COPY client client
COPY protocol protocol
COPY validator validator
RUN /opt/p2prl/bin/pip install --constraint constraints.txt --extra-index-url "$TORCH_INDEX" ".[$EXTRAS]"

FROM python:3.11.13-slim-bookworm

COPY --from=build /opt/p2prl /opt/p2prl
RUN useradd --create-home --uid 10001 p2prl && install --directory --owner=p2prl --mode=0700 /data
ENV PATH=/opt/p2prl/bin:$PATH P2PRL_HOME=/data HF_HOME=/data/hub
USER 10001
WORKDIR /data
VOLUME /data
ENTRYPOINT ["p2prl"]
CMD ["--help"]
