#!/usr/bin/env bash
# Builds every target and runs the C++ tests with Bazel 4, offline: nothing but Debian's packages
# bazel-bootstrap, bazel-rules-java, bazel-rules-proto and bazel-platforms. Options are passed on to `bazel test`.
set -euo pipefail
cd "$(dirname "$0")/.."

stubs=$(mktemp -d)
share=/usr/share/bazel
bazel() { command bazel --output_user_root="$stubs/out" "$@"; }
trap 'bazel shutdown; chmod -R u+w "$stubs"; rm -rf "$stubs"' EXIT

# Bazel's own tools load these two repositories; the rules that they name are built into Bazel 4.
mkdir -p "$stubs/rules_cc/cc" "$stubs/coverage"
touch "$stubs"/{rules_cc,rules_cc/cc,coverage}/{WORKSPACE,BUILD}
for rule in cc_binary cc_import cc_library cc_proto_library cc_test cc_toolchain cc_toolchain_suite; do
  echo "$rule = native.$rule"
done >"$stubs/rules_cc/cc/defs.bzl"
echo 'filegroup(name = "coverage_report_generator", visibility = ["//visibility:public"])' \
  >"$stubs/coverage/BUILD"

bazel test //... \
  --override_repository=rules_cc="$stubs/rules_cc" \
  --override_repository=remote_coverage_tools="$stubs/coverage" \
  --override_repository=rules_java="$share/rules/java" \
  --override_repository=rules_proto="$share/rules/proto" \
  --override_repository=platforms="$share/tools/platforms" \
  -c opt --nosandbox_debug --test_output=errors --color=no --noshow_progress "$@"
