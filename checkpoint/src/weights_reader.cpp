#include "fulgur/checkpoint/weights_reader.h"

#include <utility>

#include "checked_folder.h"
#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"
#include "stored_tensors.h"

namespace fulgur {
namespace fs = std::filesystem;

struct WeightsReader::Impl {
  std::shared_ptr<const detail::StoredTensors> tensors;
  std::map<std::string, std::string> aliases;
};

WeightsReader::WeightsReader(const fs::path& checkpoint, Verify verify) : impl_(std::make_unique<Impl>()) {
  detail::CheckedFolder checked(checkpoint);
  if (verify == Verify::whole) {
    checked.check_names_and_sizes();
    for (const auto& [name, record] : checked.manifest().files)
      if (!detail::belongs_to(name, detail::kModelFile)) checked.check_contents(name);
  }
  if (!checked.problems().empty())
    throw CheckpointError(cat("[checkpoint.read] ", escape_controls(checkpoint.string()), " is damaged:\n",
                              detail::text_of(checked.problems()),
                              "\nUse another checkpoint of the run, or restore this one from a copy."));
  impl_->tensors = detail::StoredTensors::open(checkpoint, checked.manifest(), detail::kModelFile);
  if (verify == Verify::whole) impl_->tensors->check_headers();
  impl_->aliases = detail::aliases_in(impl_->tensors->metadata());
}
WeightsReader::~WeightsReader() = default;
WeightsReader::WeightsReader(WeightsReader&&) noexcept = default;
WeightsReader& WeightsReader::operator=(WeightsReader&&) noexcept = default;

const std::vector<TensorInfo>& WeightsReader::tensors() const { return impl_->tensors->tensors(); }
const std::map<std::string, std::string>& WeightsReader::aliases() const { return impl_->aliases; }
Tensor WeightsReader::read(size_t index) const { return impl_->tensors->read(index); }

}  // namespace fulgur
