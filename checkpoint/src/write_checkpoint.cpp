#include "fulgur/checkpoint/checkpoint_folder.h"
#include "fulgur/core/text/text.h"
#include "io/folder_names.h"
#include "writing/checkpoint_plan.h"
#include "writing/folder_writer.h"

namespace fulgur {
namespace fs = std::filesystem;

fs::path write_checkpoint(const fs::path& folder, const CheckpointContent& content) {
  detail::CheckpointPlan plan = detail::plan_checkpoint(content);
  if (!plan.manifest.divided.empty())
    throw CheckpointError(
        "[checkpoint.write] the content has tensors of which several processes have parts: write it with write_parts.");
  const detail::FileLimitIsAnError limit;
  const fs::path temporary = detail::create_temporary(folder);
  const uint64_t free = detail::free_bytes(detail::folder_of(folder));
  std::error_code ignored;
  try {
    detail::write_files(temporary, plan, {});
    detail::write_manifest(temporary, plan.manifest);
    return detail::publish(temporary, folder);
  } catch (const detail::FileError& error) {
    fs::remove_all(temporary, ignored);
    throw detail::save_error(error, plan.bytes, free);
  } catch (...) {
    fs::remove_all(temporary, ignored);
    throw;
  }
}

fs::path write_verified_checkpoint(const fs::path& folder, const CheckpointContent& content) {
  const fs::path path = write_checkpoint(folder, content);
  const VerifyReport report = verify_checkpoint(path);
  if (report.ok()) return path;
  remove_checkpoint(path);
  throw CheckpointError(cat("[checkpoint.write] ", path,
                            " differs from what was written, and was removed. Is the disk or the memory faulty?\n",
                            report.describe()));
}

}  // namespace fulgur
