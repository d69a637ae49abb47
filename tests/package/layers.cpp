// A user's program that uses the layers of nn/: what they need must be exported, virtual tables and destructors too.
#include <ATen/ops/randn.h>
#include <fulgur/nn/batch_norm.h>

#include <cstdio>

struct Net : torch::nn::Module {
  fulgur::nn::BatchNorm1d first = register_module("first", fulgur::nn::BatchNorm1d(4));
  fulgur::nn::BatchNorm2d second = register_module("second", fulgur::nn::BatchNorm2d(4));
  fulgur::nn::BatchNorm3d third = register_module("third", fulgur::nn::BatchNorm3d(4));
};

int main() {
  Net net;
  fulgur::SingleProcessCollectives alone;
  const bool switched =
      fulgur::nn::sync_norms_over(net, &alone) == 3 && fulgur::nn::unsyncable_batch_norms(net).empty();
  // The library's type information is that of this program.
  const auto copy = std::dynamic_pointer_cast<fulgur::nn::BatchNorm1dImpl>(net.first->clone());
  const bool good = switched && copy && copy->forward(at::randn({8, 4})).size(0) == 8 &&
                    dynamic_cast<fulgur::nn::SyncableNorm*>(copy.get());
  std::puts(good ? "good" : "bad");
  return good ? 0 : 1;
}
