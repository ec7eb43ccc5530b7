#!/usr/bin/env bash
# run_tests.sh PROGRAM: the command line from outside (serving.md section 1): exit codes, JSON keys, precedence, signals.
# Uses bash and the standard library of python3 only. Prints every failed check; exits 1 if there was one.
set -u
program="$(realpath "${1:?usage: run_tests.sh PROGRAM}")"
here="$(cd "$(dirname "$0")" && pwd)"
goldens="$here/../../oracles/goldens/models"
smollm2="${XDG_CACHE_HOME:-$HOME/.cache}/outrider/test-data/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export HOME="$work/home" XDG_CACHE_HOME="$work/cache" XDG_STATE_HOME="$work/state"
mkdir -p "$HOME"
unset OUTRIDER_CONFIG OUTRIDER_JSON OUTRIDER_JSONL HF_HOME HF_HUB_CACHE 2>/dev/null
model="$work/tiny"
python3 "$here/make_model.py" "$goldens/mlx_b4_g64" "$model" || exit 1
checks=0 failures=0

failed() { failures=$((failures + 1)); echo "FAILED: $*"; }
# run EXIT-CODE ARGUMENTS...: runs the program; stdout and stderr are left in $out and $err.
run() {
  local expected="$1"
  shift
  out="$("$program" "$@" 2>"$work/err" </dev/null)"
  local code=$?
  err="$(cat "$work/err")"
  checks=$((checks + 1))
  [ "$code" = "$expected" ] || failed "outrider $*: exit $code, expected $expected; stderr: $err"
}
says() { checks=$((checks + 1)); [[ "$err" == *"$1"* ]] || failed "stderr lacks \"$1\": $err"; }
prints() { checks=$((checks + 1)); [[ "$out" == *"$1"* ]] || failed "stdout lacks \"$1\": $out"; }
prints_nothing() { checks=$((checks + 1)); [ -z "$out" ] || failed "stdout is not empty: $out"; }
equal() { checks=$((checks + 1)); [ "$1" = "$2" ] || failed "\"$1\" is not \"$2\" ($3)"; }
# json EXPRESSION: of the document d in $out.
json() { printf '%s' "$out" | python3 -c "import json,sys; d=json.load(sys.stdin); print(($1))" 2>&1; }
json_is() { equal "$(json "$1")" "$2" "$1 of $out"; }

# --- overview, help, names ---
run 2; prints_nothing; says "Subcommands"
run 2 --quiet; prints_nothing
run 0 --version; prints "outrider "
run 0 version; prints "outrider "
run 0 --help; prints "chat"
run 0 help run; prints "--max-tokens"
run 0 run --help; prints "--top-p"
run 2 rnu; says 'did you mean run?'
run 2 help rnu; says 'did you mean run?'
run 2 run --tempp 1 "$model" x; says "unknown flag --tempp; did you mean --temp?"
run 2 run "$model" x --jsn; says "did you mean --json?"
run 2 run "$model" x --pipeline; says "--pipeline"
run 2 run "$model" x y; says 'unexpected argument "y"'
run 2 models get org/name --revision 3; says "not available in this version"
run 2 models rm name; says "not available in this version"
run 2 run --max-tokens many "$model" x
run 2 run --temp 9 "$model" x; says "temperature is 9, allowed are 0 to 5"
run 2 --threads 0 run "$model" x
run 2 --memory-budget lots run "$model" x; says "is not a size"

run 2 --memory-budget "" run "$model" x; says "is not a size"
run 2 --config "" run "$model" x; says "--config is empty"
run 2 --config "$work/no.toml" run "$model" x; says "no.toml"
for arguments in "run $model x" "tokenize $model x" "models list" "models rm x" "fit $model"; do
  err="$(OUTRIDER_ISA=nonsense "$program" $arguments 2>&1 >/dev/null)"; equal $? 2 "OUTRIDER_ISA in $arguments"; says nonsense
done

# --- whole numbers: no clamping, no octal, no rest ---
for value in 9223372036854775808 -9223372036854775809 1e3 0x10 5x "" " 5" +5; do
  run 2 run "$model" x --seed "$value"; says "\"$value\" is not a whole number from -9223372036854775808 to 9223372036854775807"
done
run 0 --json run "$model" x -m 1 --seed -9223372036854775808; json_is 'd["seed"]' -9223372036854775808
run 0 --json run "$model" x -m 010 --ignore-eos; json_is 'd["completion_tokens"]' 10
out="$(OUTRIDER_MAX_TOKENS=010 "$program" --json run "$model" x --ignore-eos 2>/dev/null)"; json_is 'd["completion_tokens"]' 10
run 2 run "$model" x -m -1; says '"-1" is not a whole number from 0 to'
run 2 run "$model" x --temp 0.5x; says '"0.5x" is not a number'
run 2 --threads 4097 run "$model" x; says "from 1 to 4096"
run 2 run "$model" x --ctx 18446744073709551617; says "18446744073709551617"
run 2 fit "$model" --rows 0; says "--rows"
run 2 run "$model" x --top-logprobs 4294967296; says "from 0 to 20"
run 2 convert "$model" "$work/q" --q-bits 010

# --- the model that comes with the program, and its MTP head ---
run 0 --json run -p "To install the package, run" -m 5 --temp 0; json_is 'd["completion_tokens"]' 5
small="$(dirname "$program")/../models/tiny-qwen3_5-mtp"
run 0 --json models info "$small"
json_is 'd["checkpoint"]["mtp"]["state"], d["checkpoint"]["mtp"]["hidden_tap"]' "('ready', 'pre_norm')"
json_is 'd["recurrent_bytes_per_row"]' 860160
json_is 'd["checkpoint"]["mtp"]["norms"], d["checkpoint"]["mtp"]["draft_vocabulary_tokens"], d["checkpoint"]["mtp"]["draft_vocabulary_origin"]' "('one_centred', 8192, 'default')"
run 0 models info "$small"; prints "drafts from    all 8192 tokens"
cp -rL "$small" "$work/small"
echo '{"ids": [1, 2, 3, 4]}' >"$work/small/draft_vocabulary.json"
run 0 models info "$work/small"; prints "drafts from    4 of 8192 tokens by draft_vocabulary.json, where that pays"
rm "$work/small/draft_vocabulary.json"
echo '{"outrider.mtp_hidden_tap": "post_norm"}' >"$work/small/outrider.json"
run 0 --json models info "$work/small"; json_is 'd["checkpoint"]["mtp"]["hidden_tap"]' post_norm
says "warning: $work/small/outrider.json: outrider.mtp_hidden_tap is post_norm, $work/small (metadata) says pre_norm"
rm "$work/small/outrider.json"
run 0 --json models info "$small" --mtp off; json_is 'd["checkpoint"]["mtp"]["state"]' off
run 0 --json logits "$small" --ids 5,6,7,8 --hidden --mtp --out "$work/mtp.safetensors"
json_is 'd["tensors"]["mtp1_hidden"], d["tensors"]["mtp1_logits"]' "([3, 512], [3, 8192])"
run 2 logits "$small" --ids 5 --mtp --out "$work/mtp.safetensors"; says "--mtp needs at least 2 ids"
run 3 models info "$small" --layout hf; says "the layout hf was asked for"
run 2 models info "$model" --layout hf; says "has one layout only"
run 3 run "$model" x --mtp on; says "without an MTP head"
run 2 models info "$model" --mtp-hidden pre_norm; says "--mtp-hidden pre_norm is given, $model is of a family without an MTP head"
run 0 models info "$model" --mtp-hidden auto --layout auto
run 2 models info "$small" --mtp off --mtp-hidden pre_norm; says "--mtp off and --mtp-hidden pre_norm are both given"
# A text larger than its estimate takes room that stored prefixes had by default: what fits by the plan loads.
python3 "$here/make_model.py" "$goldens/mlx_b4_g64" "$work/wordy"
python3 - "$work/wordy/tokenizer.json" <<'PYTHON'
import itertools, json, sys
file = json.load(open(sys.argv[1]))
words = file["model"]["vocab"]
for letters in itertools.islice(itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=3), 12000):
    words["".join(letters)] = len(words)
json.dump(file, open(sys.argv[1], "w"), separators=(",", ":"))
PYTHON
run 0 --json fit "$work/wordy" --ctx 2048 --prompt-cache-bytes 0
tight=$(($(json 'd["planned_bytes"]') + 700000))
run 0 --json fit "$work/wordy" --ctx 2048 --memory-budget $tight; json_is 'd["parts"]["prefix_bytes"] > 500000' True
run 0 chat "$work/wordy" --ctx 2048 --memory-budget $tight
run 4 chat "$work/wordy" --ctx 2048 --memory-budget $tight --prompt-cache-bytes 560000; says "name a smaller --ctx, or raise --memory-budget"
# Values of the environment that have nothing to act on count for nothing; named ones are errors.
OUTRIDER_MTP_HIDDEN=pre_norm OUTRIDER_LAYOUT=hf run 0 models info "$model"
OUTRIDER_MTP_HIDDEN=pre_norm run 0 models info "$small" --mtp off
OUTRIDER_DRAFT_VOCAB=300 OUTRIDER_SPEC_RULE=coupled run 0 run "$model" x -m 1 --temp 1 --text-drafts off
OUTRIDER_TEXT_DRAFTS=on OUTRIDER_SPEC_FIXED_DEPTH=1 OUTRIDER_MTP=on run 0 run "$small" -p x -m 1 --num-draft-tokens 0
OUTRIDER_DRAFT_VOCAB=0 run 0 convert "$small" --mlx-path "$work/nothing" --dry-run
OUTRIDER_MTP=on run 0 logits "$small" --ids 5,6 --out "$work/plain.safetensors"
equal "${out/mtp1/}" "$out" "tensors of a head that nobody asked for"
run 2 convert "$model" --mlx-path "$work/nothing" --dry-run --draft-vocab 300; says "is of a family without an MTP head"
run 2 logits "$small" --ids 5,6 --mtp-hidden pre_norm --out "$work/mtp.safetensors"; says "--mtp-hidden is given without --mtp"; says "--mtp-hidden auto"
run 2 eval perplexity "$small" --data-path "$here/run_tests.sh" --layout mixed; says "--layout"
run 3 eval perplexity "$small" --data-path "$here/run_tests.sh" --layout hf; says "the layout hf was asked for"

# --- an installed program finds its model ---
if [ -f "$(dirname "$program")/cmake_install.cmake" ]; then
  cmake --install "$(dirname "$program")" --prefix "$work/installed" >"$work/install.log" 2>&1 || failed "cmake --install: $(tail -c 300 "$work/install.log")"
  out="$(cd "$work" && "$work/installed/bin/outrider" --json run -p "To install the package, run" -m 3 --temp 0 2>"$work/err")"
  json_is 'd["completion_tokens"]' 3
  equal "$(cd "$work/installed" && find . -name config.json)" ./share/outrider/models/tiny-qwen3_5-mtp/config.json "where the model is installed"
else
  echo "skipped: the program is not in a build folder of CMake, so nothing is installed"
fi

# --- models that are not there, not named, broken ---
run 2 convert; says "no MODEL is named"
run 3 run "$work/nowhere" x
mkdir "$work/broken"; echo '{"model_type":' >"$work/broken/config.json"
run 3 run "$work/broken" x; says "config.json"
run 3 run "$goldens/mlx_b4_g64" x; says "has no tokenizer"
run 3 run "Name three rivers."; says "no model 'Name three rivers.'"; says "; a prompt alone goes with -p"
run 3 run "$work/nowhere" -p x; checks=$((checks + 1)); [[ "$err" != *"goes with -p"* ]] || failed "a prompt is given: $err"
run 3 --json run "$work/nowhere" x
json_is 'sorted(d["error"])' "['code', 'hint', 'message']"
json_is 'd["error"]["code"]' data
run 2 run x y --josn --json; json_is 'd["error"]["code"]' usage

run 2 --json; json_is 'd["error"]["code"]' usage
run 2 --json models; json_is 'd["error"]["code"]' usage
run 0 version --json; json_is 'sorted(d)' "['version']"
run 0 --version --json; json_is 'sorted(d)' "['version']"
run 0 help run --json; json_is '"--max-tokens" in d["help"]' True
run 0 run --help --json; json_is '"--max-tokens" in d["help"]' True
run 0 help models info; prints "outrider models info"
run 2 help models inf; says "did you mean info?"
run 2 help models info x
for value in off no false 0; do
  out="$(OUTRIDER_JSON=$value "$program" run "$work/nowhere" x 2>/dev/null)"; equal "$out" "" "OUTRIDER_JSON=$value and a failure"
done
out="$(OUTRIDER_JSON=on "$program" run "$work/nowhere" x 2>/dev/null)"; json_is 'd["error"]["code"]' data
printf 'json = true\n' >"$work/json.toml"
run 3 --config "$work/json.toml" run "$work/nowhere" x; json_is 'd["error"]["code"]' data
run 2 --config "$work/json.toml" run "$model" x --no-such; json_is 'd["error"]["code"]' usage
run 2 --config "$work/json.toml"; json_is 'd["error"]["code"]' usage
run 0 --config "$work/json.toml" version; json_is 'sorted(d)' "['version']"
run 3 --config "$work/json.toml" --json=false run "$work/nowhere" x; prints_nothing
out="$(OUTRIDER_JSONL=1 "$program" --json run "$model" x -m 3 2>/dev/null)"; json_is 'd["completion_tokens"]' 3
run 2 run "$model" -p --json -m x; prints_nothing  # the prompt is "--json"

# --- panel file ---
cp -r "$model" "$work/kept"
panels="$work/kept/.outrider/model.panels"
run 0 --json run "$work/kept" x -m 5 --ignore-eos; json_is 'd["load"]["weights"]' packed; packed_ids="$(json 'd["ids"]')"
json_is 'sorted(d["load"])' "['load_ms', 'text_ms', 'weights', 'weights_ms']"
[ -e "$work/kept/.outrider" ] && failed "a small model is kept without --panel-file always"
run 0 --json --panel-file always run "$work/kept" x -m 5 --ignore-eos; json_is 'd["load"]["weights"]' packed
[ -s "$panels" ] || failed "--panel-file always leaves no $panels"
run 0 --json run "$work/kept" x -m 5 --ignore-eos; json_is 'd["load"]["weights"]' mapped; json_is 'd["ids"]' "$packed_ids"
run 0 --json run "$work/kept" x -m 5 --ignore-eos --panel-file off; json_is 'd["load"]["weights"]' packed
out="$(OUTRIDER_PANEL_FILE=off "$program" --json run "$work/kept" x -m 5 2>/dev/null)"; json_is 'd["load"]["weights"]' packed
run 0 run "$work/kept" x -m 5 --stats; says "mapped"; says "text, beside them"
run 0 --json models info "$work/kept"; json_is 'd["panel_file"]' "$panels"
head -c 5000 "$panels" > "$panels.cut"; mv "$panels.cut" "$panels"
run 0 --json models info "$work/kept"; json_is 'd["panel_file"]' None
run 0 --json --log-level info --panel-file always run "$work/kept" x -m 5 --ignore-eos
says "its header says"; says "kept for the next start"; json_is 'd["ids"]' "$packed_ids"
run 0 --json run "$work/kept" x -m 5 --ignore-eos; json_is 'd["load"]["weights"]' mapped
rm -r "$work/kept/.outrider"; touch "$work/kept/.outrider"; cache_before="$XDG_CACHE_HOME"; export XDG_CACHE_HOME="$work/kept/config.json"
run 0 --json --log-level info --panel-file always run "$work/kept" x -m 5 --ignore-eos
says "the packed weights are not kept"; json_is 'd["ids"]' "$packed_ids"
export XDG_CACHE_HOME="$cache_before"
run 2 --panel-file maybe run "$work/kept" x

# --- run ---
run 0 run "$model" "hello there" -m 8 --ignore-eos; says "decode 8 tokens"; says "peak memory"
run 0 run "$model" fit -m 3 --quiet; equal "$err" "" "stderr of --quiet"
run 0 --json run "$model" "hello there" -m 12 --ignore-eos --seed 5
json_is 'sorted(set(["text","ids","finish_reason","prompt_tokens","completion_tokens","cached_tokens","seed","timings"])-set(d))' "[]"
json_is 'd["completion_tokens"], len(d["ids"]), d["finish_reason"], d["seed"], d["cached_tokens"]' "(12, 12, 'length', 5, 0)"
json_is 'sorted(k for k in d["timings"] if k.endswith("_ms"))' "['commit_ms', 'draft_ms', 'predicted_ms', 'prompt_ms', 'queue_ms', 'tokenize_ms', 'ttft_ms', 'verify_ms']"
whole="$(json 'd["text"]')" ids="$(json 'd["ids"]')" prompt_tokens="$(json 'd["prompt_tokens"]')"
equal "$prompt_tokens" 31 "prompt tokens of the chat template"
for flags in "--threads 1" "--threads 3" "--prefill-step-size 1" "--prefill-step-size 7"; do
  run 0 --json run "$model" "hello there" -m 12 --ignore-eos --seed 5 $flags; json_is 'd["ids"]' "$ids"
done
run 0 --json gen --model "$model" --prompt "hello there" -m 12 --ignore-eos; json_is 'd["ids"]' "$ids"
out="$(printf 'hello there' | "$program" --json run "$model" -m 12 --ignore-eos 2>/dev/null)"; json_is 'd["ids"]' "$ids"
out="$(printf 'hello there' | "$program" --json run "$model" - -m 12 --ignore-eos 2>/dev/null)"; json_is 'd["ids"]' "$ids"
run 0 --json run "$model" "hello there" -m 12 --ignore-eos --stop "${whole:4:2}"
json_is 'd["finish_reason"], d["stop"]' "('stop', '${whole:4:2}')"
json_is 'd["text"]' "${whole:0:4}"
run 0 --jsonl run "$model" "hello there" -m 12 --ignore-eos
equal "$(printf '%s\n' "$out" | wc -l)" 13 "lines of --jsonl"
equal "$(printf '%s\n' "$out" | python3 -c 'import json,sys; d=[json.loads(l) for l in sys.stdin]; print("".join(x["text"] for x in d[:-1])==d[-1]["text"], [i for x in d[:-1] for i in x["ids"]]==d[-1]["ids"])')" "True True" "streamed and whole"

# --- drafts ---
run 2 run "$model" x --spec-rule ratio --temp 0; says "spec_rule is ratio and temperature 0: ratio needs a temperature above 0"
run 2 run "$model" x --spec-rule greedy --temp 0.5; says "greedy needs temperature 0"
run 2 run "$model" x --spec-rule best; says "best"
sampled="--temp 0.8 --seed 5 -m 40 --ignore-eos"
run 0 --json run "$small" "To install the package" $sampled --num-draft-tokens 0; plain_ids="$(json 'd["ids"]')"
for flags in "" "--spec-rule coupled" "--spec-fixed-depth" "--spec-fixed-depth --draft-vocab 2000" "--draft-vocab 0"; do
  run 0 --json run "$small" "To install the package" $sampled $flags; json_is 'd["ids"]' "$plain_ids"
done
run 0 --json run "$small" "To install the package" $sampled --spec-rule ratio --spec-fixed-depth
json_is 'd["timings"]["draft_n"] > 20' True; ratio_ids="$(json 'd["ids"]')"
run 0 --json --threads 1 run "$small" "To install the package" $sampled --spec-rule ratio --spec-fixed-depth
json_is 'd["ids"]' "$ratio_ids"
run 0 run "$small" x -m 3 --stats; says "in use, drafts from all 8192 tokens"
run 0 run "$small" x -m 3 --stats --draft-vocab 2000; says "in use, drafts from 2000 or all 8192 tokens"
# Flags of drafts that have nothing to act on, in every verb that takes them.
idle() { run 2 "${@:3}"; says "$1 and $2 are both given, and the former leaves the latter nothing to act on"; }
for verb in "run $small x" "chat $small" "fit $small"; do
  idle "--mtp off" "--draft-vocab 2000" $verb --mtp off --draft-vocab 2000
  idle "--num-draft-tokens 0" "--draft-vocab 2000" $verb --num-draft-tokens 0 --draft-vocab 2000
  idle "--num-draft-tokens 0" "--mtp on" $verb --num-draft-tokens 0 --mtp on
  idle "--num-draft-tokens 0" "--text-drafts on" $verb --num-draft-tokens 0 --text-drafts on
  idle "--mtp off with --text-drafts off" "--num-draft-tokens 2" $verb --mtp off --text-drafts off --num-draft-tokens 2
done
for verb in "run $small x" "chat $small"; do
  idle "--num-draft-tokens 0" "--spec-rule coupled" $verb --num-draft-tokens 0 --spec-rule coupled
  idle "--num-draft-tokens 0" "--spec-fixed-depth" $verb --num-draft-tokens 0 --spec-fixed-depth
  idle "--mtp off with --text-drafts off" "--spec-rule ratio" $verb --mtp off --text-drafts off --spec-rule ratio
done
for verb in "run $model x" "chat $model" "fit $model"; do
  run 2 $verb --draft-vocab 50; says "--draft-vocab is 50, and $model has no MTP head that is used"
  run 2 $verb --text-drafts off --num-draft-tokens 2; says "up to 2 drafts are asked for, and nothing drafts"
done
run 2 run "$model" x --text-drafts off --spec-fixed-depth; says "and nothing drafts: --text-drafts is off, and $model has no MTP head"
run 0 --json run "$model" x --text-drafts off -m 2; json_is 'd["completion_tokens"]' 2
run 0 --json run "$model" x --mtp off --draft-vocab 0 --num-draft-tokens 0 --spec-rule auto -m 2; json_is 'd["completion_tokens"]' 2
run 2 convert "$small" "$work/x" --mtp off --draft-vocab 4000; says "--mtp off and --draft-vocab 4000 are both given"
run 2 convert "$small" "$work/x" --mtp off --mtp-side-car "$work/y"; says "--mtp off and --mtp-side-car are both given"
run 0 convert "$small" "$work/apart" --mtp-side-car "$work/head" -q
run 0 convert "$small" "$work/alone" --mtp off
run 3 logits "$work/alone" --ids 5,6 --mtp --out "$work/mtp.st"; says "has no MTP head"
run 0 --json logits "$work/alone" --ids 5,6 "--mtp=$work/head" --out "$work/mtp.st"; json_is 'sorted(d["tensors"])' "['logits', 'mtp1_hidden', 'mtp1_logits']"
# A fault of a side-car names its file, wherever it lies.
python3 - "$work/mtp.safetensors" <<'PYTHON'
import json, struct, sys
header = json.dumps({"mtp.norm.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(header)) + header + bytes(4))
PYTHON
run 0 convert "$small" "$work/headless" --mtp off
run 3 run "$work/headless" x --mtp "$work/mtp.safetensors"; says "$work/mtp.safetensors: 14 of the 15 tensors of the MTP head are missing"
err="$(cd "$work" && "$program" run headless x --mtp mtp.safetensors 2>&1 >/dev/null)"; says "mtp.safetensors: 14 of the 15"
run 3 bench mtp --model "$work/headless" --readings --mtp "$work/mtp.safetensors"; says "$work/mtp.safetensors: 14 of the 15"
run 0 bench decode verify batch prompt --model "$small" -n 1 -c 0,70 -p 64
run 2 run "$small" x --draft-vocab 100; says "a draft vocabulary of 100 tokens,"
run 0 fit "$small" --draft-vocab 4000
printf 'hello there hello there hello' >"$work/counted.txt"
run 0 --json convert "$small" --mlx-path "$work/ranked" --draft-vocab 300 --draft-vocab-text "$work/counted.txt"
equal "$(python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); print(list(d), len(d["ids"]), len(set(d["ids"])))' "$work/ranked/draft_vocabulary.json")" "['ids'] 300 300" "the ranking"
run 2 convert "$small" --mlx-path "$work/x" --draft-vocab 20; says "a draft vocabulary of 20 tokens,"
run 0 convert "$work/ranked" --mlx-path "$work/again"
cmp -s "$work/ranked/draft_vocabulary.json" "$work/again/draft_vocabulary.json" || failed "convert loses draft_vocabulary.json"
run 2 convert "$small" --mlx-path "$work/x" --draft-vocab-text "$work/counted.txt"; says "without --draft-vocab"
run 2 convert "$small" --mlx-path "$work/x" --draft-vocab 100000; says "the tokenizer has"
run 3 convert "$small" --mlx-path "$work/x" --draft-vocab 300 --draft-vocab-text "$work/none.txt"

run 0 --json run "$model" --ids 1,5,9 -m 4 --ignore-eos; json_is 'd["prompt_tokens"]' 3
run 0 --json run "$goldens/mlx_b4_g64" --ids 1,5,9 -m 4 --ignore-eos; json_is 'd["text"], len(d["ids"])' "('', 4)"
run 2 run "$model" --ids -1; says '"-1" is not a token id'
run 2 run "$model" --ids ""; says "no token ids"
run 2 run "$model" --ids 1,,2; says "missing beside a comma"
run 2 run "$model" --ids 1,2,; says "missing beside a comma"
run 2 logits "$model" --ids "" --out "$work/x"; says "no token ids"
run 2 run "$model" --ids 1,x; says '"x" is not a token id'
run 2 run "$model" --ids 1,97; says "outside the vocabulary of 97"
run 2 run "$model" x --ids 1
run 0 --json run "$model" x -m 6 --temp 1 --seed 9 --ignore-eos; first="$(json 'd["ids"]')"
run 0 --json run "$model" x -m 6 --temp 1 --seed 9 --ignore-eos --threads 1; json_is 'd["ids"]' "$first"
run 0 --json run "$model" x -m 2 --top-logprobs 3; json_is 'len(d["logprobs"][0]["top_logprobs"])' 3
run 0 --json run "$model" x --ignore-chat-template -m 1; json_is 'd["prompt_tokens"]' 1
run 0 --json run "$model" x --system-prompt y -m 1; json_is 'd["prompt_tokens"]' 32
run 0 --json run "$model" x --prefill-response abc -m 1; json_is 'd["prompt_tokens"]' 24
run 0 --json run "$model" x -m 0; json_is 'd["ids"], d["finish_reason"]' "([], 'length')"
run 2 --json run "$model" x -m 5000; json_is '"the largest max_tokens that passes is" in d["error"]["message"]' True
run 0 run "$model" x --trust-remote-code -m 1; says "no model code is ever run"

# --- values are texts as they stand; words behind -- are arguments ---
text_stop() { json_is 'd["finish_reason"], d.get("stop"), d["text"]' "$1"; }
run 0 --json run "$model" --ids 67,68 -m 12 --ignore-eos; whole="$(json 'd["text"]')"
for value in "[]" "[The,River]" "{}" "--temp" "--" "[${whole:2:2}]" ""; do
  [ -n "$value" ] || continue
  run 0 --json run "$model" --ids 67,68 --stop "$value" -m 12 --ignore-eos; text_stop "('length', None, '$whole')"
done
run 0 --json run "$model" --ids 67,68 --stop "[]" --stop "${whole:4:2}" -m 12 --ignore-eos; text_stop "('stop', '${whole:4:2}', '${whole:0:4}')"
run 2 run "$model" --ids 67,68 --stop "" -m 2; says "a stop string has 0 bytes"
run 2 run "$model" --ids 67,68 --stop= -m 2; says "a stop string has 0 bytes"
run 2 run "$model" x --logit-bias "[5=1]" -m 2; says '"[5=1]"'
run 2 convert "$model" "$work/q" --q-override "[a,b]"; says '[a,b]'
out="$(OUTRIDER_STOP="[${whole:4:2}]" "$program" --json run "$model" --ids 67,68 -m 12 --ignore-eos 2>/dev/null)"; text_stop "('length', None, '$whole')"
out="$(OUTRIDER_STOP="${whole:4:2}" "$program" --json run "$model" --ids 67,68 -m 12 --ignore-eos 2>/dev/null)"; json_is 'd["stop"]' "${whole:4:2}"
printf "stop = ['[x,y]', # a comment\n  '%s',\n]\n" "${whole:4:2}" >"$work/stop.toml"
run 0 --json --config "$work/stop.toml" run "$model" --ids 67,68 -m 12 --ignore-eos; text_stop "('stop', '${whole:4:2}', '${whole:0:4}')"
printf "stop = '[%s]'\n" "${whole:4:2}" >"$work/stop.toml"
run 0 --json --config "$work/stop.toml" run "$model" --ids 67,68 -m 12 --ignore-eos; text_stop "('length', None, '$whole')"
run 0 --json tokenize "$model" -- --ab; json_is '"".join(d["pieces"])' "--ab"
run 0 --json tokenize -- "$model" --; json_is '"".join(d["pieces"])' "--"
run 0 --json tokenize "$model" -- "++"; json_is '"".join(d["pieces"])' "++"
run 0 --json run -m 2 "$model" -- "--seed"; json_is 'd["prompt_tokens"]' 26
run 2 run "$model" -- x --json; says 'unexpected argument "--json"'; prints_nothing

# --- flag > environment > section > top of the config > generation_config.json > built-in ---
printf 'max-tokens = 6\nignore-eos = true\n[run]\nmax-tokens = 5\n[chat]\nmax-tokens = 9\n' >"$work/config.toml"
count() { json 'd["completion_tokens"]'; }
run 0 --json --config "$work/config.toml" run "$model" x; equal "$(count)" 5 "config section"
out="$(OUTRIDER_CONFIG="$work/config.toml" OUTRIDER_MAX_TOKENS=4 "$program" --json run "$model" x 2>/dev/null)"; equal "$(count)" 4 environment
out="$(OUTRIDER_CONFIG="$work/config.toml" OUTRIDER_MAX_TOKENS=4 "$program" --json run "$model" x -m 3 2>/dev/null)"; equal "$(count)" 3 flag
out="$(OUTRIDER_JSON=1 "$program" run "$model" x -m 3 --ignore-eos 2>/dev/null)"; equal "$(count)" 3 "OUTRIDER_JSON"
printf 'max-tokenz = 6\n' >"$work/bad.toml"
run 2 --config "$work/bad.toml" run "$model" x; says "did you mean max-tokens?"
printf '[generate]\nmax_tokens = 7\n[eval.perplexity]\nnum-samples = 2\n' >"$work/alias.toml"
run 0 --json --config "$work/alias.toml" run "$model" x --ignore-eos; equal "$(count)" 7 "a section named by an alias, a key with _"
printf '[models.list]\npaths = true\n' >"$work/path.toml"; mkdir -p "$XDG_CACHE_HOME/outrider/models"; cp -r "$model" "$XDG_CACHE_HOME/outrider/models/p"
run 0 --config "$work/path.toml" models list; prints "$XDG_CACHE_HOME/outrider/models/p"
rm -r "$XDG_CACHE_HOME/outrider/models/p"
bad_config() { printf "$1" >"$work/bad.toml"; run 2 --config "$work/bad.toml" run "$model" x; says "$2"; }
bad_config '[rum]\nseed = 1\n' "did you mean [run]?"
bad_config '[models.lost]\n' "did you mean [models.list]?"
bad_config '[run]\nq-bits = 4\n' "unknown key q-bits in [run]"
bad_config 'seed = 1\nseed = 2\n' "set twice"
bad_config 'stop = [1, 2\n' "an array lacks"
bad_config 'stop = "a\n' "lacks its closing quote"
bad_config 'stop = word\n' "line 1: \"word\" is no number"
bad_config 'seed = [1, 2]\n' "seed"
printf 'max-tokens = "six"\n' >"$work/bad.toml"
run 2 --config "$work/bad.toml" run "$model" x; says "max-tokens"
cp -r "$model" "$work/sampled"; echo '{"do_sample":true,"temperature":3.0}' >"$work/sampled/generation_config.json"
run 0 --json run "$work/sampled" x -m 12 --ignore-eos --seed 3; sampled="$(json 'd["ids"]')"
run 0 --json run "$work/sampled" x -m 12 --ignore-eos --seed 3 --sampling-defaults mlx; greedy="$(json 'd["ids"]')"
run 0 --json run "$work/sampled" x -m 12 --ignore-eos --seed 3 --temp 0; json_is 'd["ids"]' "$greedy"
checks=$((checks + 1)); [ "$sampled" != "$greedy" ] || failed "generation_config.json is not used"
out="$(OUTRIDER_ISA=nonsense "$program" run "$model" x 2>&1)"; equal $? 2 OUTRIDER_ISA

# --- memory ---
run 4 --memory-budget 60MiB run "$model" x; says "the budget is 62914560"
run 4 --json --memory-budget 60MiB fit "$model"; json_is 'd["fits"]' False
run 0 --json fit "$model" --ctx 512 --rows 2
json_is 'd["planned_bytes"]==sum(d["parts"].values()), d["fits"], sorted(d["parts"])' "(True, True, ['fixed_bytes', 'kv_bytes', 'prefix_bytes', 'scratch_bytes', 'text_bytes', 'weights_bytes'])"
json_is 'd["max_context_tokens"]' "{'1': 2048, '4': 2048, '16': 2048}"
# The text part is one number, before loading and after, and what it holds lies below it.
run 0 --json fit "$small"; text_bytes="$(json 'd["parts"]["text_bytes"]')"
run 0 run "$small" x -m 1 --stats
checks=$((checks + 1)); python3 - "$text_bytes" "$err" <<'PYTHON' || failed "the text part of fit is $text_bytes: $err"
import re, sys
units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
size = lambda text: float(text.split()[0]) * units[text.split()[1]]
planned, used = re.search(r"memory, text +(.*?) planned, (.*?) at the peak", sys.argv[2]).groups()
assert abs(size(planned) / int(sys.argv[1]) - 1) < 0.01 and 0 < size(used) <= size(planned), (planned, used)
PYTHON
# An automatic context leaves room for a prompt cache, a named one may take it.
run 0 --json fit "$model" --ctx 2048 --prompt-cache-bytes 0; budget="$(json 'd["planned_bytes"]')"
run 0 --json --memory-budget "$budget" fit "$model"
json_is 'd["fits"], 64 < d["context_tokens"] < d["max_context_tokens"]["1"], d["parts"]["prefix_bytes"] > 0.3 * d["parts"]["kv_bytes"]' "(True, True, True)"
run 0 --memory-budget "$budget" fit "$model"; prints "a --ctx beyond what else is planned takes from prefix"
run 0 --json --memory-budget "$budget" fit "$model" --ctx 2048; json_is 'd["fits"], "prefix_bytes" in d["parts"]' "(True, False)"
run 0 --json --memory-budget "$budget" fit "$model" --prompt-cache-bytes 0; json_is 'd["context_tokens"]' 2048
run 0 --json fit "$model" --ctx 512 --prompt-cache-bytes 1MiB; json_is 'd["parts"]["prefix_bytes"]' 1048576
run 0 --json fit "$model" --ctx 512 --prompt-cache-bytes 0; json_is '"prefix_bytes" in d["parts"]' False
run 2 fit "$model" --prompt-cache-bytes lots; says '"lots" is not a size'
run 0 fit "$model" --rows 256; prints "fits"; prints "predicted for one row: decode"
run 0 --json fit "$model" --ctx 512 --rows 800
json_is 'sorted(d["predicted"])' "['context_tokens', 'decode_at_context_tokens_per_s', 'decode_context_tokens', 'decode_share_of_limit', 'decode_tokens_per_s', 'f32_gmac_per_s', 'i16_gmac_per_s', 'prompt_share_of_limit', 'prompt_tokens_per_s', 'read_gb_per_s', 'rows']"
json_is 'd["predicted"]["rows"], d["predicted"].pop("decode_context_tokens"), d["predicted"]["context_tokens"] == d["context_tokens"], all(value > 0 for value in d["predicted"].values())' '(1, 0, True, True)'
run 4 --json --memory-budget 60MiB fit "$model"; json_is 'd["predicted"]' None

# --- bench: its form; what it measures is judged by nobody here ---
rows_are() { checks=$((checks + 1)); printf '%s\n' "$out" | python3 -c "import json,sys; rows=[json.loads(l) for l in sys.stdin]; assert ($1), rows" 2>"$work/err.py" || failed "bench rows: $1: $(tail -c 600 "$work/err.py")"; }
run 0 --jsonl bench decode verify --model "$model" -n 2 --contexts 0,100
rows_are 'all(list(r) == ["suite","case","value","unit","limit","of_limit","peer","peer_value","ratio"] for r in rows)'
rows_are '[r["case"] for r in rows if r["suite"] == "decode"] == ["decode context 0", "decode context 100", "decode context 0, over the prediction of fit"]'
rows_are '[(r["case"], r["unit"]) for r in rows if r["suite"] == "verify"] == [("verify 1", "ms"), ("verify 2", "x"), ("verify 3", "x"), ("verify 4", "x")] + [(f"verify {n}, limit at 0.6 of the 16 bit peak", "ms") for n in (2, 3, 4)]'
rows_are '[r["unit"] for r in rows if r["suite"] == "machine"] == ["GB/s", "Gmac/s", "Gmac/s", "Gmac/s"]'
rows_are 'all(r["value"] > 0 for r in rows) and all(r["peer"] is r["ratio"] is None for r in rows)'
rows_are 'all(abs(r["of_limit"] - (r["value"] / r["limit"] if r["unit"] == "tok/s" else r["limit"] / r["value"])) < 1e-9 for r in rows if r["limit"])'
run 0 --json bench prompt batch --model "$model" -n 1 --prompts 7,600 -b 3 --threads 1
json_is '[r["case"] for r in d["rows"] if r["suite"] != "machine"]' "['prompt 7', 'prompt 600', 'batch 1', 'batch 3', 'batch 3, over one row']"
run 0 bench decode --model "$model" -n 1 -c 5; prints "decode context 5"; prints "% of"
run 0 --jsonl bench start --model "$model" -n 1; rows_are '[(r["case"], r["unit"]) for r in rows if r["suite"] == "start"] == [("start ids 4", "ms"), ("start text", "ms")]'
run 0 --jsonl bench start --model "$goldens/mlx_b4_g64" -n 1; rows_are '[r["case"] for r in rows if r["suite"] == "start"] == ["start ids 4"]'
run 2 bench decod; says 'there is no suite "decod" (there are kernels, decode, prompt, batch, verify, start, peers, mtp)'; says "did you mean decode?"
run 2 bench decode --model "$model" --contexts 2048; says '--contexts names "2048", which is no whole number from 0 to 2047'
run 2 bench prompt --model "$model" --prompts 0; says '--prompts names "0"'
run 2 bench prompt --model "$model" --prompts 4,5x; says '--prompts names "5x"'
run 2 bench peers --model "$model"; says "needs at least one --peer"
run 2 bench decode --peer true --model "$model"; says "the suite peers is not asked for"
run 1 bench peers --peer true --model "$model"; says 'the peer "true" ended without an answer'
run 1 bench peers --peer "echo 5" --model "$model"; says "wrote no JSON object: 5"
run 1 bench peers --peer "echo {}" --model "$model"; says "gave no peer"
run 1 bench peers --peer "echo '{\"error\": \"no memory\"}'" --model "$model"; says "no memory"
run 3 bench decode --model "$work/nowhere"
run 4 --memory-budget 100MiB bench decode --model "$model"; says "the budget is 104857600"
run 2 bench kernels --formats "9 bit"; says 'no weight format is named like "9 bit" (there are 2 bit, groups of 32;'
run 0 --jsonl bench kernels --formats "4 bit, groups of 64" -n 1 --threads 1
rows_are '{r["unit"] for r in rows if r["case"].startswith("product")} == {"GB/s", "Gmac/s"} and len([r for r in rows if r["case"].startswith("attention")]) == 5'
rows_are 'all(0 < r["of_limit"] for r in rows if r["suite"] == "kernels")'
run 4 --memory-budget 100MiB bench kernels; says "the suite kernels takes"
run 0 --jsonl bench --peer "python3 $here/fake_peer.py slow 1000 $work/slow" --peer "python3 $here/fake_peer.py quick 1e-9 $work/quick" \
  --model "$model" -n 1 -c 0,500 -p 9 -b 2
rows_are '[r["peer"] for r in rows if r["case"] == "decode context 0"] == ["slow", "quick"] and [r["peer"] for r in rows if r["case"] == "decode context 500"] == [None]'
rows_are '[r["ratio"] > 1 for r in rows if r["case"] in ("decode context 0", "prompt 9", "batch 2")] == [True, False] * 3'
rows_are '[round(r["peer_value"], 6) for r in rows if r["case"] == "verify 3"] == [3, 3]'
rows_are 'all(abs(r["ratio"] - (r["value"] / r["peer_value"] if r["unit"] == "tok/s" else r["peer_value"] / r["value"])) < 1e-9 * r["ratio"] for r in rows if r["peer"] and r["case"] != "batch 2, over one row")'
equal "$(tail -n 1 "$work/slow") $(head -n 1 "$work/slow")" 'end [1, 1, 0, "last"]' "what the peer was asked"
equal "$(grep -c every "$work/slow")" 3 "verify windows asked of the peer"
# What does not fit the model's context is refused when it is all there is, and left out otherwise.
cp -r "$model" "$work/short"
python3 - "$work/short/config.json" <<'PYTHON'
import json, sys
config = json.load(open(sys.argv[1])); config["max_position_embeddings"] = 3; json.dump(config, open(sys.argv[1], "w"))
PYTHON
run 2 bench prompt --model "$work/short"; says "the suite prompt has no prompt of at most 3 tokens"; says "-p 3"
run 2 bench verify --model "$work/short"; says "the suite verify needs 4 tokens of context, the model has 3"
run 2 bench start --model "$work/short"; says "the suite start needs 5 tokens"
run 0 --jsonl bench decode prompt verify decode --model "$work/short" -n 1; says "the suite prompt has no prompt"; says "the suite verify needs 4 tokens of context, the model has 3: it is left out"
rows_are '[r["case"] for r in rows if r["suite"] == "decode"][:1] == ["decode context 0"] and len([r for r in rows if r["case"] == "decode context 0"]) == 1'
run 0 --jsonl bench mtp -n 1 --rows 1,2 --depth 2
rows_are '[r["suite"] for r in rows] == ["machine"] * 4 + ["mtp"] * (len(rows) - 4)'
rows_are '{r["case"] for r in rows if r["unit"] == "tok/s"} == {f"rows {n}, {way}" for n in (1, 2) for way in ("plain", "controller", "off", "depth 1", "depth 2")}'
rows_are '[r for r in rows if r["case"] == "rows 2, plain"][0]["limit"] > 0'
rows_are '{r["case"]: r for r in rows}["rows 1, depth 2, accepted at place 1"]["value"] > 0.5'
run 0 --json bench mtp -n 1 --rows 1 --acceptance 0,1 --ways 2,off
json_is '[r["value"] for r in d["rows"] if "depth 2, accepted" in r["case"] or "depth 2, tokens" in r["case"]]' "[1.0, 0.0, 0.0]"
json_is '[r["value"] for r in d["rows"] if "off, tokens" in r["case"]]' "[1.0]"
run 2 bench mtp decode; says "the suite mtp runs alone"
run 2 bench decode --model "$model" --readings; says "--readings is given, and the suite mtp is not asked for"
run 2 bench mtp --model "$model"; says "has no MTP head to measure"
run 2 bench mtp --mtp off; says "has no MTP head to measure"
run 2 bench mtp --rows 1,0; says '--rows names "0", which is no whole number from 1 to 64'
run 2 bench mtp --acceptance 0.5,1.5; says '--acceptance names "1.5", which is no share from 0 to 1'
run 2 bench mtp --acceptance 0.5 --depth 2; says "--acceptance names 1 places, --depth is 2"
run 2 bench mtp --acceptance 0.5,0.4,0.3 --depth 2; says "--acceptance names 3 places, --depth is 2"
run 2 bench mtp --acceptance 1,1,1,1,1,1,1,1,1; says "--acceptance names 9 places, the most is 8"
run 2 bench mtp --acceptance 0.5,-0.1; says '--acceptance names "-0.1", which is no share from 0 to 1'
run 2 bench mtp --acceptance nan; says '--acceptance names "nan"'
for flag in --acceptance --rows --ways; do
  run 2 bench mtp $flag ""; says "$flag names \"\""
  run 2 bench mtp $flag 1,; says "$flag names \"\""
done
run 2 bench mtp --rows -1; says '--rows names "-1"'
run 2 bench mtp --ways 0; says '--ways names "0"'
run 2 bench mtp --depth 0; says '"0" is not a whole number from 1 to 8'
run 2 bench mtp -n 0; says '"0" is not a whole number from 1 to 1000'
for flag in "--rows 1" "--acceptance 0.5" "--ways off" "--draft-vocab 4000"; do
  run 2 bench mtp --readings $flag; says "--readings and --"; says "are both given, and the latter has nothing to act on"
done
run 2 bench mtp --readings --mtp-hidden pre_norm; says "--mtp-hidden pre_norm is given, and the readings measure both taps"
run 2 bench mtp --readings --model "$model"; says "has no MTP head to read"
"$program" bench mtp --readings --depth 1 >"$work/partial" 2>"$work/err" &
child=$!
for i in $(seq 100); do grep -q "answers of" "$work/err" && break; sleep 0.1; done
kill -INT "$child"; wait "$child"; equal $? 130 "SIGINT during --readings"
err="$(cat "$work/err")"; says "readings: answers of 80000 tokens in all"
run 2 bench mtp --ways controller,4; says '--ways names "4", which is no way to draft (controller, off, a depth from 1 to 3)'
run 4 --memory-budget 100MiB bench mtp; says "the budget is 104857600"
run 3 bench start --model "$small" --layout hf; says "the layout hf was asked for"
run 2 bench decode --model "$model" -c ""; says '--contexts names ""'
run 2 bench kernels decode --formats "4 bit, groups of 64" -n 1 --model "$model" -c 9999; prints_nothing
cp -r "$model" "$work/panels"; rm -rf "$work/panels/.outrider"
OUTRIDER_CTX=1 run 0 --panel-file off bench start --model "$work/panels" -n 1
checks=$((checks + 1)); [ ! -e "$work/panels/.outrider" ] || failed "bench start --panel-file off left a panel file"
run 0 --panel-file always bench start --model "$work/panels" -n 1
checks=$((checks + 1)); [ -e "$work/panels/.outrider" ] || failed "bench start --panel-file always left no panel file"
# An error or a signal in the middle: what was measured is told.
peer() { printf '%s\n' "import signal, sys, time" 'print("{\"peer\": \"p\", \"most_context\": 100, \"most_rows\": 8}", flush=True)' "$2" >"$work/$1.py"; }
peer dying 'sys.stdin.readline()'
peer silent 'signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)'
run 1 --json bench decode peers --model "$model" -n 1 -c 0 -p 4 --peer "python3 $work/dying.py"
says "the peer \"python3 $work/dying.py\" ended without an answer"
json_is 'd["partial"], sorted({r["suite"] for r in d["rows"]}), [r.get("partial") for r in d["rows"]][-1]' "(True, ['decode', 'machine', 'peers'], True)"
"$program" --json bench peers --model "$model" -n 1 -c 0 -p 4 --peer "python3 $work/silent.py" >"$work/partial" 2>"$work/err" &
child=$!
sleep 2; kill -INT "$child"; begin=$SECONDS
wait "$child"; equal $? 130 "SIGINT while a peer is silent"
checks=$((checks + 1)); [ $((SECONDS - begin)) -le 4 ] || failed "a silent peer holds bench for $((SECONDS - begin)) s"
out="$(cat "$work/partial")"; json_is 'd["partial"], any(r["suite"] == "machine" for r in d["rows"])' "(True, True)"
"$program" --json bench start --model "$model" -n 1000 >"$work/partial" 2>"$work/err" &
child=$!
sleep 2; kill -INT "$child"
wait "$child"; equal $? 130 "SIGINT during bench start"
out="$(cat "$work/partial")"; json_is 'd["partial"], "start ids 4" in [r["case"] for r in d["rows"]]' "(True, True)"

# The read bandwidth is measured inside the plan: the process stays below it.
stays_below_plan() {  # ARGUMENTS OF BOTH... -- ARGUMENTS OF run
  checks=$((checks + 1))
  python3 - "$program" "$@" <<'END' || failed "the process peak exceeds the plan: $*"
import json, resource, subprocess, sys
program, both, rest = sys.argv[1], sys.argv[2:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:]
plan = json.loads(subprocess.run([program, "--json", "fit", *both], capture_output=True).stdout)
told = subprocess.run([program, "run", *both, *rest], capture_output=True, text=True).stderr
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
assert peak <= plan["planned_bytes"], (peak, plan["planned_bytes"])
END
}
stays_below_plan "$model" -- x -m 20 --ignore-eos
[ ! -f "$smollm2" ] || stays_below_plan "$smollm2" --ctx 512 -- x -m 4
[ ! -f "$smollm2" ] || { run 0 run "$smollm2" x -m 4 --ctx 64; says "read bandwidth not measured: the memory plan leaves no room"; }
[ ! -f "$smollm2" ] || stays_below_plan "$smollm2" --ctx 8192 -- x -m 4

# --- tokenize, logits, eval, models ---
run 0 --json tokenize "$model" "ab <|im_end|>"
json_is 'd["ids"], d["pieces"][-1], d["count"]' "([67, 68, 0, 2], '<|im_end|>', 4)"
out="$(printf ab | "$program" --json tokenize "$model" - 2>/dev/null)"; json_is 'd["count"]' 2
run 0 tokenize "$model" ab; prints "67  a"
run 3 tokenize "$goldens/mlx_b4_g64" ab
golden_ids="$(python3 "$here/check_logits.py" "$goldens/llama_gqa_4/golden.safetensors" "$goldens/llama_gqa_4/golden.safetensors" ids)"
for limit in "1e-4 --precision f32" "2e-3 --prefill-step-size 7"; do
  run 0 --json logits "$goldens/llama_gqa_4" --ids "$golden_ids" --hidden --out "$work/l.safetensors" ${limit#* }
  checks=$((checks + 1))
  python3 "$here/check_logits.py" "$work/l.safetensors" "$goldens/llama_gqa_4/golden.safetensors" "${limit%% *}" || failed "logits ($limit)"
done
tr , '\n' <<<"$golden_ids" >"$work/ids.txt"
run 0 logits "$goldens/llama_gqa_4" --ids "$work/ids.txt" --out "$work/m.safetensors"
run 2 logits "$goldens/llama_gqa_4" --ids 1,2; says "no --out"
run 3 logits "$goldens/llama_gqa_4" --ids "$work/no-such-file" --out "$work/m.safetensors"
python3 -c 'print("The quick brown fox jumps over the lazy dog. " * 20, end="")' >"$work/text.txt"
run 0 --json eval perplexity "$model" --data-path "$work/text.txt" --sequence-length 100
json_is 'd["tokens"], abs(d["perplexity"]-2.718281828459045**d["nll"])<1e-6' "(891, True)"
perplexity="$(json 'd["nll"]')"
run 0 --json eval perplexity "$model" --data-path "$work/text.txt" --sequence-length 100 --batch-size 3; json_is 'd["nll"]' "$perplexity"
run 0 --json eval perplexity "$model" --data-path "$work/text.txt" --sequence-length 100 --num-samples 2; json_is 'd["tokens"]' 198
printf 'abc' >"$work/short.txt"
run 0 eval perplexity "$model" --data-path "$work/short.txt"; prints "2 tokens in 1 window"; checks=$((checks + 1)); [[ "$out" != *windows* ]] || failed "plural: $out"
run 2 eval perplexity "$model" --data-path "$work/short.txt" --num-samples 0; says "--num-samples is 0"
run 2 eval perplexity "$model" --data-path "$work/short.txt" --num-samples -2; says "--num-samples"
printf 'a' >"$work/short.txt"
run 2 eval perplexity "$model" --data-path "$work/short.txt"; says "has 1 token, the least"
run 2 eval perplexity "$model"; says "--data-path"
run 2 eval
run 0 --json models info "$model"
json_is 'sorted(set(["architecture","parameters","bytes","context_tokens","kv_bytes_per_token"])-set(d)), sum(d["bytes"].values())==d["packed_bytes"]' "([], True)"
mkdir -p "$XDG_CACHE_HOME/outrider/models"; cp -r "$model" "$XDG_CACHE_HOME/outrider/models/Tiny-One"
run 0 --json models list; json_is '[m["name"] for m in d["models"]]' "['Tiny-One']"
run 0 --json run iny-on x -m 1
cp -r "$model" "$XDG_CACHE_HOME/outrider/models/Tiny-Other"
run 2 run Tiny-O x; says "Tiny-Other"

# --- convert ---
run 0 --json convert "$model" "$work/converted" --dry-run; json_is 'd["dry_run"], d["bits_per_weight"]>4' "(True, True)"
checks=$((checks + 1)); [ ! -e "$work/converted" ] || failed "--dry-run wrote something"
run 0 --json convert "$model" "$work/converted"
json_is 'sorted(d)' "['bits_per_weight', 'bytes', 'out', 'tensors']"
run 0 --json run "$work/converted" "hello there" -m 12 --ignore-eos; json_is 'd["ids"]' "$ids"
run 2 convert "$model" "$work/converted"
run 0 --json quantize "$goldens/llama_widths_80_136" "$work/q8" --q-bits 8 --q-group-size 32 --q-override '*down_proj=16'
run 0 --json run "$work/q8" --ids 1,2,3 -m 2
run 2 convert "$model" "$work/q5" --q-bits 5
run 2 convert "$model" "$work/converted" --dry-run; says "is not an empty directory"
run 2 convert "$model" --mlx-path ""; says "--mlx-path is empty"
run 2 convert "$model" ""; says "--mlx-path is empty"
run 0 convert "$model" "$work/warned" --q-group-size 32 --dry-run; says "--q-group-size changes nothing"
run 0 convert "$model" "$work/warned" --q-mode affine --dry-run; says "--q-mode changes nothing"
run 0 convert "$model" "$work/warned" --q-bits 4 --q-group-size 64 --dry-run; says "nothing is quantized"
run 0 convert "$model" "$work/warned" --dry-run; equal "$err" "" "no warning without a reason"
run 0 convert "$goldens/llama_widths_80_136" "$work/warned" -q --q-group-size 64 --dry-run; says "nothing is quantized"

# --- the real model, where scripts/fetch_test_data has fetched it ---
if [ -f "$smollm2" ]; then
  run 0 --json run "$smollm2" "What is the capital of France?" -m 24; ids="$(json 'd["ids"]')"
  json_is '"Paris" in d["text"]' True
  run 0 --json fit "$smollm2" --ctx 512; planned="$(json 'd["planned_bytes"]')"
  run 0 --json convert "$smollm2" "$work/smollm2"
  # The converted copy says the same, and the process never holds more than the plan.
  out="$(python3 -c 'import resource, subprocess, sys
answer = subprocess.run(sys.argv[2:], capture_output=True, text=True).stdout
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
print(answer if peak <= int(sys.argv[1]) else "peak of %d bytes, planned %s" % (peak, sys.argv[1]))' "$planned" \
    "$program" --json run "$work/smollm2" "What is the capital of France?" -m 24 --ctx 512)"
  json_is 'd["ids"]' "$ids"
else
  echo "SKIPPED: SmolLM2 is not in $(dirname "$smollm2"); run scripts/fetch_test_data"
fi

# --- signals and readers that leave ---
# Every line of this is some 600 bytes: after a hundred the pipe is full and the program waits for its reader.
many=(run "$model" x -m 2000 --ignore-eos --jsonl --top-logprobs 20)
"$program" "${many[@]}" 2>/dev/null | head -n 1 >/dev/null
equal "${PIPESTATUS[0]}" 141 "a reader that leaves"
mkfifo "$work/pipe"
"$program" "${many[@]}" >"$work/pipe" 2>/dev/null &
child=$!
{ read -r first; kill -INT "$child"; cat >"$work/rest"; } <"$work/pipe"
wait "$child"; equal $? 130 "SIGINT during an answer"
out="$(tail -n 1 "$work/rest")"; json_is 'd["finish_reason"], d["partial"], 0<len(d["ids"])<2000' "('cancelled', True, True)"
"$program" "${many[@]}" >"$work/pipe" 2>/dev/null &
child=$!
exec 7<"$work/pipe"; read -r first <&7
sleep 0.5; kill -TERM "$child"; sleep 0.3; kill -INT "$child"
wait "$child"; equal $? 130 "a second signal exits at once"
exec 7<&-
exec 8<>"$work/pipe"  # a writer that never writes
"$program" run "$model" - <"$work/pipe" >/dev/null 2>"$work/err" &
child=$!
sleep 0.5; kill -INT "$child"
wait "$child"; equal $? 130 "SIGINT while reading the prompt"
exec 8>&-

# --- chat ---
out="$(printf 'hi\n/save %s\n/undo\n/retry\n/set temp=0.5\n/set tmp=1\n/set temp=hot\n/nope\n/load %s\n/stats\n"""\ntwo\nlines\n"""\n/clear\n/quit\nnever\n' "$work/c.json" "$work/c.json" |
  "$program" chat "$model" -m 4 --ignore-eos --no-history 2>"$work/err")"
equal $? 0 "chat"; err="$(cat "$work/err")"
says "there is nothing to take back"; says "did you mean temp?"; says "unknown command /nope"; says "first token after"
equal "$(printf '%s\n' "$out" | wc -l)" 2 "two answers: $out"
out="$(cat "$work/c.json")"; json_is '[m["role"] for m in d["messages"]]' "['user', 'assistant']"
says "saved 2 messages to"; says "loaded 2 messages from"; says "taken back"; says "temp is 0.5"; says "is forgotten"
# chat_says SCRIPT: the commands of a chat; stderr is left in $err, the exit code is checked.
chat_says() {
  out="$(printf "$1" | "$program" "${@:2}" chat "$model" -m 4 --ignore-eos --no-history 2>"$work/err")"
  equal $? 0 "chat: $1"; err="$(cat "$work/err")"
}
chat_says '/help  \n/system \n/save \n/load \nhi\n/quit \nnever\n'
says "system: (none)"; says "/save needs a file name"; says "/load needs a file name"
equal "$(printf '%s\n' "$out" | wc -l)" 1 "/quit with a space leaves, the others do not"
chat_says 'hi\n/set temp=9\n/set max-tokens=-1\n/set model=x\n/set ctx=5\n/set system-prompt=x\n/set help=1\n/set stop=[]\n/set top_k=3\nagain\n'
says "temperature is 9, allowed are 0 to 5"; says '"-1" is not a whole number'; says "there is no setting model"
says "there is no setting ctx"; says "there is no setting system-prompt"; says "there is no setting help"; says "stop is []"; says "top_k is 3"
equal "$(printf '%s\n' "$out" | wc -l)" 2 "a refused setting changes nothing: $err"
chat_says 'hi\n/set max-tokens=2040\n/retry\n/save ~/kept.json\n/load ~/kept.json\n'
says "max_tokens"; out="$(cat "$HOME/kept.json")"; json_is '[m["role"] for m in d["messages"]]' "['user', 'assistant']"
chat_says 'hi\n/undo\n/clear\n/set temp=0\n' --quiet; equal "$err" "" "stderr of chat --quiet"
chat_says 'hi\nho\n' --json; json_is 'len(d["answers"]), d["answers"][0]["completion_tokens"]' "(2, 4)"
# The second turn of a chat finds the state of the first, question and answer.
chat_says "$(printf 'x%.0s' {1..100})\nho\n/stats\n" --json
json_is 'd["answers"][0]["cached_tokens"], 64 <= d["answers"][1]["cached_tokens"] < d["answers"][1]["prompt_tokens"]' "(0, True)"
says "$(json 'd["answers"][1]["cached_tokens"]') cached"
json_is 'd["answers"][1]["timings"]["cache_n"] + d["answers"][1]["timings"]["prompt_n"] == d["answers"][1]["prompt_tokens"]' True
warm="$(json '[answer["text"] for answer in d["answers"]]')"
out="$(printf "$(printf 'x%.0s' {1..100})\nho\n" | "$program" --json chat "$model" -m 4 --ignore-eos --no-history --prompt-cache-bytes 0 2>/dev/null)"
json_is '[answer["text"] for answer in d["answers"]], d["answers"][1]["cached_tokens"]' "($warm, 0)"
chat_says 'hi\nho\n' --jsonl; equal "$(printf '%s\n' "$out" | wc -l)" 2 "lines of chat --jsonl"
exec 8<>"$work/pipe"
"$program" chat "$model" --no-history <"$work/pipe" >/dev/null 2>"$work/err" &
child=$!
sleep 0.7; kill -TERM "$child"
wait "$child"; equal $? 143 "SIGTERM at the prompt of chat"
exec 8>&-
checks=$((checks + 1)); [ ! -e "$work/state/outrider/history" ] || failed "--no-history left a history"
checks=$((checks + 1)); timeout 60 python3 "$here/terminal_chat.py" "$program" "$model" "$HOME" || failed "chat on a terminal"

echo "cli: $checks checks, $failures failed"
[ "$failures" = 0 ]
