#!/usr/bin/env bash
# Builds the C++ tests with sanitizers and runs them: races in those that start threads, memory and undefined
# behaviour in all. Longer: `build/thread/ffi/tests/stress_test SECONDS [SEED]`.
set -euo pipefail
cd "$(dirname "$0")/.."

# Builds with sanitizers $1 in build/$1, and runs the tests that ctest's other options choose.
run() {
  local folder="build/$1"
  cmake -S . -B "$folder" -G Ninja -DJAXCC_PYTHON=OFF -DJAXCC_TESTS=ON -DJAXCC_SANITIZE="$1" >/dev/null
  cmake --build "$folder"
  ctest --test-dir "$folder" --output-on-failure --timeout 300 "${@:2}"
}

run thread --label-regex threads
run address,undefined --label-exclude model
