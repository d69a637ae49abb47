#include "help/examples.h"

#include <map>

namespace fulgur::cli {

std::vector<std::string> examples_of(const std::string& verb) {
  static const std::map<std::string, std::vector<std::string>> all{
      {"",
       {"fit -c config.yaml", "fit -c config.yaml --trainer.max_epochs 3 --model.dropout 0.1",
        "fit -c config.yaml --resume      # continue a run that ended early",
        "validate -c config.yaml --ckpt_path best"}},
      {"new", {"new my_project"}},
      {"fit",
       {"fit -c config.yaml", "fit -c config.yaml --trainer.max_epochs 3 --model.dropout 0.1",
        "fit --model CnnClassifier --data MnistDataModule --optimizer AdamW", "fit -c config.yaml --resume"}},
      {"validate", {"validate -c config.yaml --ckpt_path best"}},
      {"test", {"test -c config.yaml --ckpt_path best --report test.json"}},
      {"predict", {"predict -c config.yaml --ckpt_path last"}},
      {"config", {"config -c config.yaml", "config -c config.yaml --print_config=comments,skip_null"}},
      {"schema", {"schema > fulgur.schema.json"}},
      {"list", {"list", "list callback", "list model -c config.yaml    # with the classes of its plug-ins"}},
      {"describe", {"describe ModelCheckpoint", "describe trainer"}},
      {"export", {"export fulgur_logs/version_0/checkpoints/best.ckpt --format pt"}},
      {"import", {"import weights.pt -c config.yaml --output start.ckpt"}},
      {"inspect", {"inspect fulgur_logs/version_0/checkpoints/last.ckpt", "inspect weights.safetensors --json"}},
      {"runs", {"runs", "runs fulgur_logs --sort=-val_acc --filter 'status=finished'"}},
      {"compare", {"compare fulgur_logs/version_0 fulgur_logs/version_1"}},
      {"report", {"report fulgur_logs --output report.html"}},
      {"watch", {"watch", "watch fulgur_logs/version_3 --every 5"}},
      {"tune", {"tune lr -c config.yaml", "tune batch_size -c config.yaml --mode binsearch"}},
      {"sweep", {"sweep -c config.yaml --sweep sweep.yaml --jobs 4", "sweep --show sweeps/sweep"}},
      {"bench",
       {"bench comm --trainer.devices 8 --output mine.yaml",
        "bench comm --trainer.accelerator cpu --trainer.devices 2"}},
      {"plan",
       {"plan -c config.yaml --nodes 1..1024 --devices 8 --profile h200",
        "plan -c config.yaml --input 2048:int64 --input 2048:int64"}},
      {"tokenize",
       {"tokenize --input 'texts/*.txt' --output tokens --train bpe",
        "tokenize --input b.jsonl --jsonl text --output tokens --tokenizer gpt2"}},
      {"doctor", {"doctor", "doctor -c config.yaml", "doctor --json"}},
      {"env", {"env"}},
      {"completion", {"completion bash >> ~/.bashrc", "completion fish > ~/.config/fish/completions/trainer.fish"}},
  };
  const auto found = all.find(verb);
  return found == all.end() ? std::vector<std::string>() : found->second;
}

}  // namespace fulgur::cli
