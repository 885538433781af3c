#!/bin/sh
# foreign.sh ECHO_SERVER: talks to our server with Python's gRPC, which learns everything by reflection. 77: no such Python here.
here=$(dirname "$0")
for python in "${XDG_CACHE_HOME:-$HOME/.cache}/kvf-checks/bin/python" python3; do
    if "$python" -c 'import grpc, grpc_reflection' 2>/dev/null; then
        exec "$python" "$here/foreign.py" "$1"
    fi
done
echo "skipped: no Python with grpcio and grpcio-reflection"
exit 77
