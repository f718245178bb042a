#!/bin/bash -eu
# Builds all targets into $OUT, each with its corpus and options, as OSS-Fuzz asks for.
# It sets $SRC, $WORK and $OUT.

cd "$SRC/daskwire/fuzz"
corpora=$WORK/corpora
mkdir -p "$corpora"
tar -xzf corpus.tar.gz -C "$corpora"
programs=$WORK/target/x86_64-unknown-linux-gnu/release

for crate in . peer; do
    cargo fuzz build --fuzz-dir "$crate" --target-dir "$WORK/target" -O --debug-assertions
    for target in "$crate"/fuzz_targets/*.rs; do
        target=$(basename "$target" .rs)
        cp "$programs/$target" "$OUT/"
        inputs=("$corpora/$crate/corpus/$target")
        if [[ -d seeds/$target ]]; then
            inputs+=("seeds/$target")
        fi
        zip -qrj "$OUT/${target}_seed_corpus.zip" "${inputs[@]}"
        printf '[libfuzzer]\nmax_len = 4096\n' >"$OUT/$target.options"
    done
done
