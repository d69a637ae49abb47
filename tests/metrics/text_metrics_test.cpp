#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fulgur/core/text/errors.h"
#include "fulgur/metrics/text.h"

namespace text_metrics_test {

using namespace fulgur;

TEST_CASE("BLEU has the values of torchmetrics, in one update and text by text") {
  std::ifstream file(FULGUR_METRIC_VALUES);
  const nlohmann::json bleu = nlohmann::json::parse(file).at("bleu");
  const auto texts = bleu.at("texts").get<std::vector<std::string>>();
  const auto references = bleu.at("references").get<std::vector<std::vector<std::string>>>();
  for (const nlohmann::json& item : bleu.at("cases")) {
    INFO(item);
    const metrics::Bleu::Options options{.n_gram = item.at("n_gram"), .smooth = item.at("smooth")};
    metrics::Bleu whole(options), parts(options);
    whole.update(texts, references);
    CHECK(whole.compute().item<double>() == Catch::Approx(item.at("expected").get<double>()).epsilon(1e-6));
    for (size_t i = 0; i < texts.size(); ++i) parts.update({texts[i]}, {references[i]});
    CHECK(parts.compute().equal(whole.compute()));
  }
  metrics::Bleu bad;
  CHECK_THROWS_AS(bad.update({"a"}, {}), Error);
  CHECK_THROWS_AS(bad.update({"a"}, {{}}), Error);
}

}  // namespace text_metrics_test
