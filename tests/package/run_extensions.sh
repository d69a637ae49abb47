#!/usr/bin/env bash
# Trains with the classes of docs/extending.md, which are in a plug-in, and looks at what each of them did.
#   run_extensions.sh TRAINER PLUGIN FOLDER PLUGIN_WITH_A_VERB_NAMED_LIST
set -euo pipefail
trainer="$1" plugin="$2" folder="$3" taken="$4"

fail() { echo "FAILED: $*" >&2; exit 1; }

rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"
fit=("$trainer" fit --plugin "$plugin" --model MlpClassifier --model.in_features 4 --model.num_classes 3 --model.metrics+=NearAccuracy
  --data RepeatedData --optimizer SignSGD --optimizer.lr 0.01 --trainer.logger TextLogger --trainer.log_every_n_steps 1
  --trainer.checkpoint_writer MirroredWriter --trainer.checkpoint_writer.mirror "$PWD/mirror" --trainer.enable_progress_bar false
  --seed_everything 1)
"${fit[@]}" --trainer.max_epochs 2 >fit.txt 2>&1 || { cat fit.txt; fail "fit"; }
run=fulgur_logs/version_0
# 24 samples, each twice, in batches of 8.
grep -q "12 steps" fit.txt || { cat fit.txt; fail "the sampler does not repeat the samples"; }
grep -q val_near_accuracy fit.txt || { cat fit.txt; fail "the metric is not logged"; }
[ "$(grep -c '^step .*train_loss' $run/rows.txt)" = 12 ] || { cat $run/rows.txt; fail "the logger has not written twelve rows"; }
grep -q "SignSGD" $run/config.yaml || fail "the optimizer is not in the config"
last="$(basename "$(readlink -f $run/checkpoints/last.ckpt)")"
diff -r "$run/checkpoints/$last" "mirror/$last" || fail "the writer has not copied the checkpoint"
# A resumed logger begins where the checkpoint ends.
"${fit[@]}" --trainer.max_epochs 3 --resume >resumed.txt 2>&1 || { cat resumed.txt; fail "resume"; }
[ "$(grep -c '^step .*train_loss' $run/rows.txt)" = 18 ] || { cat $run/rows.txt; fail "the resumed logger has not written eighteen rows"; }
# A writer that fails fails the save.
touch blocked
code=0
"${fit[@]}" --trainer.max_epochs 1 --trainer.checkpoint_writer.mirror "$PWD/blocked/mirror" >blocked.txt 2>&1 || code=$?
[ $code = 4 ] || { cat blocked.txt; fail "a writer that fails must end the run with exit code 4; got $code"; }
[ -z "$(find fulgur_logs/version_1/checkpoints -name '*.ckpt')" ] || fail "a checkpoint remains that could not be copied"

printf 'a\n\n\nb\n' >lines
[ "$("$trainer" count_empty --plugin "$plugin" --file lines)" = "2 empty lines" ] || fail "the verb does not count"
[ "$("$trainer" --plugin="$plugin" count_empty --file=lines)" = "2 empty lines" ] || fail "the verb does not count with = in its options"
"$trainer" count_empty --plugin "$plugin" --help >help.txt
{ grep -q "required" help.txt && grep -qF "Usage: trainer count_empty [--OPTION VALUE]" help.txt; } || { cat help.txt; fail "the verb shows no help"; }
"$trainer" --help --plugin "$plugin" >help.txt
grep -q "^  count_empty  *Counts the empty lines" help.txt || { cat help.txt; fail "the help of the program does not show the verb"; }
"$trainer" --plugin "$plugin" >/dev/null 2>help.txt && fail "no verb, and no error"
grep -q "^  count_empty  *Counts the empty lines" help.txt || { cat help.txt; fail "the verb is not shown where one is missing"; }
"$trainer" count_emty --plugin "$plugin" >/dev/null 2>help.txt && fail "an unknown verb is no error"
grep -qF "did you mean 'count_empty'?" help.txt || { cat help.txt; fail "the verb of the plug-in is not suggested"; }
"$trainer" list verb --plugin "$plugin" | grep -q "count_empty  *Counts the empty lines" || fail "list verb does not show the verb"
"$trainer" list verb | grep -q "verb: none; .*--plugin FILE.so" || fail "list verb without verbs"
# A program that contains the verb completes its options.
completed() { LD_PRELOAD="$plugin" "$trainer" __complete zsh "$@" | cut -f1 | sort | tr '\n' ' '; }
[ "$(completed count_empty --)" = "--file --help --plugin " ] || fail "completion of the verb's options: $(completed count_empty --)"
[ "$(completed count_empty --file '')" = ":files " ] || fail "completion of the option's value: $(completed count_empty --file '')"
[ -z "$("$trainer" __complete zsh count_empty --trainer)" ] || fail "keys of a config are offered to a verb that is not known"
refused() {
  code=0
  "$trainer" count_empty --plugin "$plugin" "${@:3}" >/dev/null 2>stderr || code=$?
  { [ $code = "$1" ] && grep -qF -e "$2" stderr; } || { cat stderr; fail "expected exit code $1 and '$2'; got $code"; }
}
refused 2 "file" # required
refused 2 "--fil: unknown key; did you mean 'file'?" --fil lines
refused 2 '`count_empty --help` shows the options.' --fil lines
if grep -q ":1:1" stderr; then cat stderr; fail "an option has a place in a file"; fi
refused 2 "takes options" --file lines more
refused 2 "needs a value" --file
refused 3 "cannot be read" --file absent
code=0
"$trainer" count_empty --file lines 2>stderr || code=$?
[ $code = 2 ] || fail "an unknown verb must end with exit code 2; got $code"

# A verb with the name of a built-in one would never run: the plug-in is refused by each verb that loads it.
printf 'plugin: [%s]\n' "$taken" >taken.yaml
for with in "list --plugin $taken" "list model --plugin $taken" "config --plugin $taken" "fit -c taken.yaml" "config -c taken.yaml" "count_empty --plugin $taken"; do
  code=0
  "$trainer" $with >/dev/null 2>stderr || code=$?
  { [ $code = 2 ] && grep -qF "$taken" stderr && grep -q "it registers a verb 'list' at .*taken_verb.cpp:[0-9]*, and the program has a verb of this name" stderr &&
    grep -q "Register it under another name" stderr; } || { cat stderr; fail "a verb with the name of a built-in one, $with: $code"; }
done

code=0
"${fit[@]}" --trainer.strategy ddp --trainer.strategy.cluster_environment JobScheduler >job.txt 2>&1 || code=$?
{ [ $code = 5 ] && grep -q "JobScheduler, which does not recognise this process" job.txt; } || { cat job.txt; fail "a process of another launcher"; }
JOB_RANK=0 JOB_SIZE=1 JOB_HEAD=127.0.0.1:1 "${fit[@]}" --trainer.strategy ddp --trainer.max_epochs 1 >job.txt 2>&1 || { cat job.txt; fail "a job of one process"; }
code=0
JOB_RANK=3 JOB_SIZE=2 JOB_HEAD=127.0.0.1:1 "${fit[@]}" --trainer.strategy ddp --trainer.max_epochs 1 >job.txt 2>&1 || code=$?
{ [ $code = 5 ] && grep -q "the rank is not below the world size" job.txt; } || { cat job.txt; fail "a wrong place"; }
