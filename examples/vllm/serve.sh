#!/usr/bin/env bash
# vLLM with warm compile caches: restore, serve, and save what was compiled once the server answers.
#
#   STORE=s3://my-bucket/vllm ./serve.sh MODEL [OPTION]...      as for `vllm serve`
#
# The options are in the key, since they decide what vLLM compiles.

set -euo pipefail
: "${STORE:?set STORE to the store of the bundles, such as s3://my-bucket/vllm}"
health=${HEALTH:-http://127.0.0.1:8000/health}
patience=${PATIENCE:-3600} # seconds until the server has to answer

salt="vllm $(vllm --version) $*"
key=$(triton-bundler key --salt "$salt")
fallbacks=()
while read -r prefix; do fallbacks+=(--restore-key "$prefix"); done < <(triton-bundler key --salt "$salt" --prefixes)
triton-bundler restore --store "$STORE" --key "$key" "${fallbacks[@]}" || echo "restore failed: starting cold" >&2

vllm serve "$@" &
server=$!
trap 'kill -TERM $server 2>/dev/null || true' TERM INT

save() {
    for ((waited = 0; waited < patience; waited++)); do
        kill -0 $server 2>/dev/null || return 0 # it ended: what a failed start left behind is not worth keeping
        if curl --silent --fail --output /dev/null "$health"; then
            triton-bundler save --store "$STORE" --key "$key" || echo "save failed: the next start compiles again" >&2
            return 0
        fi
        sleep 1
    done
}
save
wait $server
