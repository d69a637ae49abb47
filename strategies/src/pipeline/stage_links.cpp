#include "pipeline/stage_links.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

constexpr size_t kMostValues = 8, kMostSizes = 8;
constexpr size_t kHeaderOfValue = 3 + kMostSizes;  // dtype, whether it has a gradient, number of sizes, sizes

}  // namespace

StageLinks::StageLinks(MeshGroups& mesh, bool is_ring, at::Device device) : mesh_(mesh), device_(device) {
  const int64_t ranks = mesh.size(MeshAxis::pipeline), own = mesh.place(MeshAxis::pipeline);
  const auto connect = [&](Link& link, const char* name, int64_t sender, int64_t receiver) {
    const std::vector<int64_t> both{std::min(sender, receiver), std::max(sender, receiver)};
    link = {.group = mesh.connect(cat(name, sender), both), .is_sender = own == sender};
    // NCCL connects two ranks in their first exchange, in which both must be.
    const Tensor nothing = at::zeros({1}, device);
    if (link.is_sender)
      send(link, nothing);
    else
      receive(link, nothing);
    finish();
  };
  // Every rank makes its links in the order of their first ranks, so none waits for another in a circle.
  for (int64_t rank = 0; rank < (is_ring ? ranks : ranks - 1); ++rank) {
    const int64_t next = (rank + 1) % ranks;
    if (own == rank) {
      connect(outputs_out_, "outputs", rank, next);
      connect(gradients_in_, "gradients", next, rank);
    } else if (own == next) {
      connect(outputs_in_, "outputs", rank, next);
      connect(gradients_out_, "gradients", next, rank);
    }
  }
}

// The ranks of a group are in increasing order of their places, which is that of the link only if it leads onwards.
StageLinks::Sent StageLinks::start_send(const Link& link, const Tensor& value) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> values{value.detach().contiguous()};
  Sent sent;
  run_exchange(mesh_.whole(), "mesh", [&] {
    sent = {link.group->send(values, 1 - link.group->getRank(), 0), values.front()};
  });
  return sent;
}

void StageLinks::receive(const Link& link, Tensor value) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> values{std::move(value)};
  run_exchange(mesh_.whole(), "mesh", [&] { link.group->recv(values, 1 - link.group->getRank(), 0)->wait(); });
}

void StageLinks::finish() {
  run_exchange(mesh_.whole(), "mesh", [&] {
    for (const auto& [work, value] : under_way_) work->wait();
    for (const auto& gradients : gradients_under_way_)
      for (const auto& [work, value] : gradients) work->wait();
  });
  under_way_.clear();
  gradients_under_way_.clear();
  gradients_freed_ = 0;
}

void StageLinks::send_header(const std::vector<Shape>& shapes) {
  std::vector<int64_t> header{static_cast<int64_t>(shapes.size())};
  for (const Shape& shape : shapes) {
    header.insert(header.end(), {static_cast<int64_t>(shape.dtype), shape.has_gradient ? 1 : 0,
                                 static_cast<int64_t>(shape.sizes.size())});
    header.insert(header.end(), shape.sizes.begin(), shape.sizes.end());
    header.resize(header.size() + kMostSizes - shape.sizes.size());
  }
  header.resize(1 + kMostValues * kHeaderOfValue);
  send(outputs_out_, at::tensor(header, at::kLong));
}

std::vector<StageLinks::Shape> StageLinks::receive_header() {
  const Tensor header = at::zeros({static_cast<int64_t>(1 + kMostValues * kHeaderOfValue)}, at::kLong);
  receive(outputs_in_, header);
  const int64_t* numbers = header.const_data_ptr<int64_t>();
  std::vector<Shape> shapes(static_cast<size_t>(*numbers++));
  for (Shape& shape : shapes) {
    shape = {.dtype = static_cast<at::ScalarType>(numbers[0]),
             .sizes = {numbers + 3, numbers + 3 + numbers[2]},
             .has_gradient = numbers[1] != 0};
    numbers += kHeaderOfValue;
  }
  return shapes;
}

void StageLinks::send_outputs(int64_t stage, const std::string& key, const Values& outputs) {
  std::vector<Shape> shapes;
  for (const Tensor& output : outputs) shapes.push_back(shape_of(output));
  const bool fits = shapes.size() <= kMostValues &&
                    std::ranges::all_of(shapes, [](const Shape& shape) { return shape.sizes.size() <= kMostSizes; });
  if (!fits)
    throw Error(cat("[strategies.mesh] a stage may return at most ", kMostValues, " tensors of at most ", kMostSizes,
                    " dimensions; stage ", stage, " returns ", shapes.size(), ". Join some of them in the layer."));
  const auto [known, is_new] = sent_.emplace(std::pair(stage, key), shapes);
  if (is_new) send_header(shapes);
  if (known->second != shapes)
    throw Error(cat("[strategies.mesh] stage ", stage,
                    " returned other shapes or types than for an earlier batch of the ",
                    "same shapes. A layer of stages() may not choose them by the values of its input."));
  for (const Tensor& output : outputs) send(outputs_out_, output);
}

StageLinks::Values StageLinks::receive_outputs(int64_t stage, const std::string& key) {
  const auto known = received_.find({stage, key});
  const std::vector<Shape>& shapes =
      known != received_.end() ? known->second : received_[{stage, key}] = receive_header();
  Values values;
  for (const Shape& shape : shapes) {
    Tensor value = at::empty(shape.sizes, at::TensorOptions(device_).dtype(shape.dtype));
    receive(outputs_in_, value);
    values.push_back(value.set_requires_grad(shape.has_gradient));
  }
  return values;
}

void StageLinks::send_gradients(const Values& gradients) {
  std::vector<Sent>& sent = gradients_under_way_.emplace_back();
  for (const Tensor& gradient : gradients) sent.push_back(start_send(gradients_out_, gradient));
}

void StageLinks::free_gradients(int64_t calls) {
  for (; gradients_freed_ < calls && !gradients_under_way_.empty(); ++gradients_freed_) {
    run_exchange(mesh_.whole(), "mesh", [&] {
      for (const auto& [work, value] : gradients_under_way_.front()) work->wait();
    });
    gradients_under_way_.pop_front();
  }
}

StageLinks::Values StageLinks::receive_gradients(const Values& outputs) {
  Values gradients;
  for (const Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    gradients.push_back(at::empty(output.sizes(), output.options().requires_grad(false)));
    receive(gradients_in_, gradients.back());
  }
  // The outputs have arrived, since their gradients have: their memory is free to go with the graph.
  std::erase_if(under_way_, [&](const auto& sent) {
    const bool has_arrived =
        std::ranges::any_of(outputs, [&](const Tensor& output) { return output.is_alias_of(sent.second); });
    if (has_arrived) run_exchange(mesh_.whole(), "mesh", [&] { sent.first->wait(); });
    return has_arrived;
  });
  return gradients;
}

}  // namespace fulgur::detail
