#include "fulgur/core/state/let_go.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StorageImpl.h>

#include <catch2/catch_test_macros.hpp>
#include <stdexcept>

namespace let_go_test {

using namespace fulgur;

namespace {

int g_freed = 0;

// As an allocator of a device that has failed.
void fail_to_free(void*) {
  ++g_freed;
  throw std::runtime_error("the device has failed");
}

Tensor of_failed_device() {
  static float values[4] = {};
  c10::Storage storage(c10::Storage::use_byte_size_t{}, sizeof values,
                       c10::DataPtr(values, values, &fail_to_free, at::kCPU), /*allocator=*/nullptr,
                       /*resizable=*/false);
  Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({4});
  return tensor;
}

}  // namespace

TEST_CASE("memory that cannot be freed is leaked by whoever releases it last") {
  g_freed = 0;
  Tensor tensor = of_failed_device(), other = tensor;
  let_go(tensor);
  CHECK_FALSE(tensor.defined());
  CHECK(g_freed == 0);
  CHECK(other.size(0) == 4);
  let_go(other);
  CHECK(g_freed == 1);
  let_go(other);
  CHECK(g_freed == 1);
}

TEST_CASE("a batch releases all its tensors, including those in lists") {
  g_freed = 0;
  {
    Batch batch;
    batch.add("x", of_failed_device());
    batch.add("list", std::vector<Tensor>{of_failed_device(), Tensor()});
    batch.add("texts", std::vector<std::string>{"a"});
    const HeldBatch held(std::move(batch));
  }
  CHECK(g_freed == 2);
}

TEST_CASE("a view that holds the memory last releases it, with and without grad mode") {
  for (const bool grad_mode : {true, false}) {
    CAPTURE(grad_mode);
    const at::AutoGradMode mode(grad_mode);
    g_freed = 0;
    Tensor view = of_failed_device().narrow(0, 1, 2).view({1, 2});
    let_go(view);
    CHECK(g_freed == 1);
    // In one batch, in either order.
    for (const bool view_first : {true, false}) {
      CAPTURE(view_first);
      g_freed = 0;
      Batch batch;
      const auto add = [&](Tensor first, Tensor second) {
        batch.add("first", std::move(first));
        batch.add("second", std::move(second));
      };
      {
        Tensor whole = of_failed_device(), part = whole.narrow(0, 1, 2);
        if (view_first)
          add(std::move(part), std::move(whole));
        else
          add(std::move(whole), std::move(part));
      }
      let_go(batch);
      CHECK(g_freed == 1);
    }
  }
}

}  // namespace let_go_test
