#!/usr/bin/env bash
# Builds the fuzz targets and runs each in turn: make fuzz (600 s each), make fuzz FUZZ=--ci (5 s each),
# make fuzz FUZZ=--seconds=N. A crash, a panic, a hang of 10 s or 1 GiB of memory fails, and the input
# is kept in target/fuzz/artifacts.
#
# libFuzzer needs only coverage instrumentation, which the stable compiler has (-C
# passes=sancov-module). AddressSanitizer needs a nightly compiler: cd tests && cargo +nightly fuzz
# run TARGET. The code under these targets is safe Rust, so little is lost without AddressSanitizer.
set -euo pipefail
cd "$(dirname "$0")"
seconds=600
case "${1:-}" in
    "") ;;
    --ci) seconds=5 ;;
    --seconds=*) seconds="${1#--seconds=}" ;;
    *) echo "usage: $0 [--ci | --seconds=N]" >&2; exit 2 ;;
esac
target="$PWD/../../target/fuzz"
host=$(rustc -vV | sed -n 's/^host: //p')
# The flags of cargo-fuzz. With --target, they affect neither build scripts nor macros.
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares"
# The versions of the workspace; only libfuzzer-sys is added.
cp ../../Cargo.lock .
cargo build -q --release --target "$host" --target-dir "$target"
for source in fuzz_targets/*.rs; do
    name=$(basename "$source" .rs)
    mkdir -p "$target/corpus/$name" "$target/artifacts/$name"
    if ! "$target/$host/release/$name" "$target/corpus/$name" -max_total_time="$seconds" -timeout=10 \
        -rss_limit_mb=1024 -artifact_prefix="$target/artifacts/$name/" >"$target/$name.log" 2>&1; then
        tail -n 40 "$target/$name.log"
        echo "fuzz target $name failed; the whole output is in target/fuzz/$name.log" >&2
        exit 1
    fi
    echo "fuzz target $name: $(tail -n 1 "$target/$name.log")"
done
