#include "fulgur/core/data_module.h"

namespace fulgur {
void DataModule::setup(Verb) {}
void DataModule::teardown(Verb) {}
void DataModule::on_exception(const std::exception&) {}
}  // namespace fulgur
