#include "fulgur/data/sample.h"

#include "fulgur/core/text/errors.h"
#include "fulgur/core/text/text.h"

namespace fulgur {

Sample::Part::Part(const std::string& name, const Sample& nested) {
  for (const auto& [inner, value] : nested.entries_) entries_.emplace_back(cat(name, ".", inner), value);
}

Sample::Sample(std::initializer_list<Part> parts) {
  for (const Part& part : parts) add(part);
}

void Sample::add(Part part) {
  for (auto& entry : part.entries_) {
    for (const auto& [name, value] : entries_)
      if (name == entry.first) throw Error(cat("[data.Sample] entry names must differ; '", name, "' occurs twice."));
    entries_.push_back(std::move(entry));
  }
}

}  // namespace fulgur
