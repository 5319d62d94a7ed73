#!/bin/sh
# Certify a model, check the certificate, and compare it with the last one that was accepted.
#
#     sh examples/certify_in_ci.sh MODEL BASELINE
#
# Exits with 0 if the certificate is valid and no worse than BASELINE. Where there is no
# BASELINE yet, the certificate becomes it: commit that file.
set -eu
model=$1
baseline=$2
python=${PYTHON:-python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
certificate=$folder/certificate.json

# What the pipeline enforces and what training does: state it here, and nowhere else.
"$python" -m lipcert certify "$model" -o "$certificate" --input-norm 1 --temperature 0.1 \
    --scope constraint-set --constraint spectral:1 --bias-norm 1 --batch-size 256

# What was reviewed by people. An assumption that is not listed makes the verdict CONDITIONAL,
# which exits with 3.
accepted=A-INPUT,A-LOSS,A-PROJ,A-MECHANISM,A-NEIGH,A-GRAD-AGG,A-RNG,A-NUMERIC
"$python" -m lipcert.core.main "$certificate" --model "$model" --accept-assumption "$accepted"

if [ -e "$baseline" ]; then
    "$python" -m lipcert compare "$baseline" "$certificate" --fail-on-regression --format markdown
else
    cp "$certificate" "$baseline"
fi
