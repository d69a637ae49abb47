#include "pipeline/run_layer.h"

#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur::detail {
namespace {

std::string shapes_text(const LayerChain::Values& values) {
  std::vector<std::string> shapes;
  for (const Tensor& value : values)
    shapes.push_back(value.defined() ? cat(shape_text(value.sizes()), " ", c10::toString(value.scalar_type()))
                                     : "undefined");
  return shapes.empty() ? "no tensors" : join(shapes);
}

std::vector<int64_t> versions_of(const LayerChain::Values& values) {
  std::vector<int64_t> versions;
  for (const Tensor& value : values) versions.push_back(value.defined() ? value._version() : 0);
  return versions;
}

}  // namespace

LayerChain::Values run_layer(const LayerChain::Layer& layer, const LayerChain::Values& values, int64_t micro_batch) {
  const auto failure = [&](std::string_view what) {
    return Error(cat("[strategies.mesh] the layer '", escape_controls(layer.name), "' of the module's stages() ", what,
                     " (micro-batch ", micro_batch, ", which gave it ", shapes_text(values), ")"));
  };
  const std::vector<int64_t> before = versions_of(values);
  LayerChain::Values results;
  try {
    results = layer.forward(values);
  } catch (const Error&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    throw Error(cat(failure("failed").what(), ": ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw Error(cat(failure("failed").what(), ": ", error.what()));
  }
  if (versions_of(values) != before)
    throw failure("has changed its arguments in place. Compute new tensors, such as x.mul(2) in place of x.mul_(2)");
  if (results.empty()) throw failure("returned no tensors");
  for (const Tensor& result : results)
    if (!result.defined()) throw failure("returned an undefined tensor");
  return results;
}

}  // namespace fulgur::detail
