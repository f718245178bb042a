#!/usr/bin/env bash
# The corpora of all targets, which are in one archive.
#
# Usage: fuzz/corpus.sh unpack              puts the archive where cargo-fuzz looks for
#                                           corpora
#        fuzz/corpus.sh pack [OPTION...]    adds what was found since and reaches new code
#                                           to the archive; cargo fuzz gets the options.
#                                           What is in seeds/ stays there
#
# Default of CARGO_FUZZ, the command to run: "cargo fuzz".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

unpack() {
    tar -xzf corpus.tar.gz
}

pack() {
    local cargo_fuzz crate target name folder input found
    read -ra cargo_fuzz <<<"${CARGO_FUZZ:-cargo fuzz}"
    folder=$(mktemp -d)
    tar -xzf corpus.tar.gz -C "$folder"
    for crate in . peer; do
        for target in "$crate"/fuzz_targets/*.rs; do
            name=$(basename "$target" .rs)
            target=$crate/corpus/$name
            mkdir -p "$folder/$target"
            if [[ -d $target ]]; then
                # By edges alone, without the counts of their uses, so that the archive
                # stays small.
                "${cargo_fuzz[@]}" run --fuzz-dir "$crate" "$@" "$name" \
                    "$folder/$target" "$PWD/$target" -- -merge=1 -use_counters=0 -max_len=4096
                # libFuzzer names an input by its SHA-1; the start of it will do.
                for input in "$folder/$target"/*; do
                    found=$(basename "$input")
                    if [[ $found =~ ^[0-9a-f]{40}$ ]]; then
                        mv -n "$input" "$folder/$target/${found::12}"
                    fi
                done
            fi
        done
    done
    (cd "$folder" && find . -type f -printf '%P\n' | LC_ALL=C sort |
        tar --format=ustar --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 -cf - -T -) |
        gzip -9n >corpus.tar.gz
    rm -rf "$folder"
    ls -l corpus.tar.gz
}

case ${1:-} in
unpack) unpack ;;
pack) shift && pack "$@" ;;
*)
    sed -n '4,10s/^# \?//p' "${BASH_SOURCE[0]}"
    exit 2
    ;;
esac
