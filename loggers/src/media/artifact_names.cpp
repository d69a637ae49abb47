#include "media/artifact_names.h"

#include "fulgur/core/text/text.h"

namespace fulgur {

std::string ArtifactNames::name_of(const std::filesystem::path& artifact) {
  std::error_code error;
  std::filesystem::path source = std::filesystem::weakly_canonical(artifact, error);
  if (error) source = artifact.lexically_normal();
  if (!source.has_filename()) source = source.parent_path();
  std::string name = source.filename();
  for (int version = 1; sources_.try_emplace(name, source).first->second != source; ++version)
    name = cat(source.stem().string(), "-v", version, source.extension().string());
  return name;
}

}  // namespace fulgur
