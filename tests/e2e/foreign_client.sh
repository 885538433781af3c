#!/bin/sh
# foreign_client.sh KVFERRY MODEL: Python's gRPC against a whole cluster. 77: no Python with grpcio and grpcio-reflection here.
here=$(dirname "$0")
root=$here/../..
for python in "${XDG_CACHE_HOME:-$HOME/.cache}/kvf-checks/bin/python" "$root/.venv-tests/bin/python" python3; do
    if "$python" -c 'import grpc, grpc_reflection' 2>/dev/null; then
        exec "$python" "$here/foreign_client.py" "$@"
    fi
done
if python3 -m venv "$root/.venv-tests" >/dev/null 2>&1 &&
    timeout 120 "$root/.venv-tests/bin/pip" install -q grpcio grpcio-reflection protobuf >/dev/null 2>&1; then
    exec "$root/.venv-tests/bin/python" "$here/foreign_client.py" "$@"
fi
echo "skipped: no Python with grpcio and grpcio-reflection, and pip cannot get them"
exit 77
