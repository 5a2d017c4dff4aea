ARG BASE_IMAGE=python:3.11-slim
# Serves SmolLM2-135M-Instruct:     docker run -p 8000:8000 IMAGE        (the built-in model: IMAGE fables)
# Serves another one:               docker run -p 8000:8000 -v /models/mine:/model:ro IMAGE /model
# For GPUs:                         --build-arg DEVICE=cuda, with TORCH_SPEC and PIP_EXTRA_ARGS where pip's default is no
#                                   build for CUDA; the libraries come with torch, the driver with the host's runtime
# Another torch build:              --build-arg TORCH_SPEC="torch==2.13.0" --build-arg PIP_EXTRA_ARGS="--index-url ..."
# Another index of CPU builds:      --build-arg TORCH_INDEX=URL; if it does not answer, pip's configuration is used
# Another base:                     --build-arg BASE_IMAGE=... (Debian's kind, with python3 >= 3.11, its venv module, pip)

# 1. The dependencies, in a virtual environment of their own: this layer changes only with the files copied here.
FROM ${BASE_IMAGE} AS dependencies
ARG TORCH_SPEC="torch==2.13.0"
ARG PIP_EXTRA_ARGS=""
ARG TORCH_INDEX="https://download.pytorch.org/whl/cpu"
ARG DEVICE=cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
RUN python3 -m venv --without-pip /opt/lightwell
COPY pyproject.toml constraints.txt ./
COPY deploy/install.py deploy/
# hadolint ignore=SC2046
RUN python3 -m pip --python /opt/lightwell/bin/python install ${PIP_EXTRA_ARGS} \
        $(test "${DEVICE}" = cuda || python3 deploy/install.py --print-torch-index "${TORCH_INDEX}") \
        --constraint constraints.txt "${TORCH_SPEC}"
# With the extra for traces (10 MB): there is no installing it into a read-only container.
RUN python3 -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; print(*[each for each in p['dependencies'] if not each.startswith('lightwell-client')], *p['optional-dependencies']['otel'], sep='\n')" > requirements.txt \
    && python3 -m pip --python /opt/lightwell/bin/python install --constraint constraints.txt --requirement requirements.txt
# The model that is served by default.
COPY deploy/smollm2 deploy/smollm2
RUN python3 -m pip --python /opt/lightwell/bin/python install --no-deps ./deploy/smollm2
# What only compiling against torch or testing the libraries needs. Byte code stays: without it a start takes seconds more.
RUN packages="$(echo /opt/lightwell/lib/python3*/site-packages)" \
    && rm -rf "${packages}/torch/include" "${packages}/torch/share" "${packages}/torch/test" \
        "${packages}"/torch/bin/protoc* "${packages}"/torch/bin/test* "${packages}"/torch/lib/*.a \
    && find "${packages}/sympy" "${packages}/numpy" "${packages}/networkx" "${packages}/mpmath" \
        -type d -name tests -prune -exec rm -rf {} +

# 2. Ourselves, installed over the dependencies; what that added is set apart, so that a change of ours is a small layer.
FROM dependencies AS ourselves
COPY README.md LICENSE NOTICE hatch_build.py ./
COPY src ./src
COPY clients/python ./clients/python
COPY model ./model
COPY server ./server
RUN touch /installing \
    && python3 -m pip --python /opt/lightwell/bin/python install --no-deps . ./clients/python \
    && mkdir /added \
    && find /opt/lightwell -type f -cnewer /installing -print0 > /added.list \
    && tar --create --file /added.tar --null --files-from /added.list \
    && tar --extract --file /added.tar --directory /added

# 3. What runs. Triton compiles a stub in C for the driver at the start: on a GPU that takes a compiler and Python's
# headers, which the base may have already. Their versions are the base's, which is chosen at the build.
FROM ${BASE_IMAGE}
ARG DEVICE=cpu
# hadolint ignore=DL3008,SC2086
RUN if [ "${DEVICE}" = cuda ]; then \
        test -f "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" || headers=libpython3-dev; \
        apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev ${headers:-} && rm -rf /var/lib/apt/lists/*; \
    fi
RUN useradd --uid 10001 --no-log-init --home-dir /var/lib/lightwell --create-home lightwell \
    && mkdir /cache && chown lightwell /cache \
    && chgrp -R 0 /cache /var/lib/lightwell && chmod -R g=u /cache /var/lib/lightwell
COPY --from=dependencies /opt/lightwell /opt/lightwell
COPY --from=ourselves /added/opt/lightwell /opt/lightwell
# /cache keeps models from the hub, and code compiled for a GPU, between runs (mount a volume). Nothing else is written
# but /tmp, so the root may be read-only and all rights dropped:
# docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges
ENV PATH=/opt/lightwell/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/cache \
    XDG_CACHE_HOME=/cache \
    TRITON_CACHE_DIR=/cache/triton \
    LIGHTWELL_HOST=0.0.0.0 \
    LIGHTWELL_PORT=8000
# A user of another number (docker run --user 12345, OpenShift) is of group 0, which may write to the same folders.
USER 10001:0
WORKDIR /var/lib/lightwell
EXPOSE 8000
STOPSIGNAL SIGTERM
# As long as a first start may take that downloads a model and compiles for a GPU; the first success ends it.
HEALTHCHECK --interval=10s --timeout=5s --start-period=1800s --retries=3 \
    CMD ["lightwell", "health"]
ENTRYPOINT ["lightwell", "serve"]
